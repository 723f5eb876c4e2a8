//! What is done to a memory: a sequence of operations, drawn from a seed.

use super::attention::Cell;
use super::host::{Host, Saved};
use super::memory::What;
use super::shape::Shape;
use super::tensor::CacheTensor;
use crate::id::words;
use crate::stream::Stream;

/// The domain of the stream that operations are drawn from.
const OPS: u64 = 0x5354_4154;

/// The domain of the stream that rows are made of.
const ROWS: u64 = 0x524f_5753;

words! {
    /// What the operations lean towards.
    pub enum Mix: "mix of operations" {
        /// A bit of everything.
        Any = "any",
        /// Much is removed from the middle, so that free cells lie scattered.
        Holes = "holes",
        /// Memory is kept nearly full.
        Full = "full",
        /// Sequences share cells.
        Shared = "shared",
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// New positions of a sequence, with their rows.
    Append {
        /// The sequence.
        sequence: i32,
        /// Its new cells.
        cells: Vec<Cell>,
        /// Number of the first row, counted over the case.
        first: usize,
    },
    /// Takes positions out.
    Remove {
        /// The sequence.
        sequence: i32,
        /// The first position.
        from: i32,
        /// The first that stays.
        to: i32,
    },
    /// Moves positions.
    Shift {
        /// The sequence.
        sequence: i32,
        /// The first position.
        from: i32,
        /// The first that stays.
        to: i32,
        /// How far.
        by: i32,
    },
    /// Lets a sequence see what another sees.
    Copy {
        /// That one.
        from: i32,
        /// The sequence.
        to: i32,
        /// The recurrent part gets a cell of its own.
        fork: bool,
    },
    /// Saves; saves are counted from 0.
    Save {
        /// What.
        what: What,
        /// Without the attention part of a hybrid.
        partial: bool,
        /// Into a ring of checkpoints.
        checkpoint: bool,
    },
    /// Loads a save.
    Load {
        /// Which.
        save: usize,
        /// Into what.
        what: What,
        /// The save left out the attention part of a hybrid.
        partial: bool,
        /// The blob is what another device would have saved: it comes from the host, with one byte of a row changed.
        flip: Option<usize>,
    },
    /// Fills all rows with a byte.
    Garbage(u8),
}

/// Operations, and the rows they need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// In order.
    pub ops: Vec<Op>,
    /// New cells of all appends. Each has a row for each tensor; of a recurrent part that of an append's last cell is
    /// taken.
    pub rows: usize,
}

/// How operations are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Recipe {
    /// Operations, not counting those that every case ends with.
    pub ops: usize,
    /// What they lean towards.
    pub mix: Mix,
    /// Checkpoints that are kept; without any there is none.
    pub ring: usize,
}

impl Script {
    /// The operations of a seed. Each is possible when its turn comes.
    pub fn draw(shape: &Shape, recipe: &Recipe, seed: u64) -> Self {
        let stream = Stream::new(seed, OPS);
        let mut drawing =
            Drawing { shape, recipe, host: Host::new(shape), script: Script::default(), saved: vec![], saves: vec![] };
        for i in 0..recipe.ops {
            drawing.step(stream.at(i as u64));
        }
        drawing.end(stream.at(recipe.ops as u64));
        drawing.script
    }
}

/// Fills the row that a new cell brings for a tensor. Any bytes are a row: nothing computes with them.
pub fn fill_row(seed: u64, tensor: usize, row: usize, bytes: &mut [u8]) {
    let stream = Stream::new(seed, ROWS).at(tensor as u64).at(row as u64);
    for (i, chunk) in bytes.chunks_mut(8).enumerate() {
        let word = stream.word(i as u64).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// The rows that a new cell brings, for each tensor of a memory.
pub fn rows(tensors: &[CacheTensor], seed: u64, row: usize) -> Vec<Vec<u8>> {
    let fill = |(i, t): (usize, &CacheTensor)| {
        let mut bytes = vec![0; t.row_bytes()];
        fill_row(seed, i, row, &mut bytes);
        bytes
    };
    tensors.iter().enumerate().map(fill).collect()
}

/// How something was saved.
#[derive(Clone, Copy)]
struct Save {
    what: What,
    partial: bool,
}

struct Drawing<'a> {
    shape: &'a Shape,
    recipe: &'a Recipe,
    host: Host,
    script: Script,
    /// What was saved, and how.
    saved: Vec<Saved>,
    saves: Vec<Save>,
}

impl Drawing<'_> {
    fn step(&mut self, s: Stream) {
        let sequences = self.shape.sequences() as u64;
        let sequence = s.below(0, sequences) as i32;
        let other = (sequence + 1 + s.below(1, (sequences - 1).max(1)) as i32) % sequences as i32;
        // Append, remove, shift, copy, save, load.
        let weights: [u64; 6] = match self.recipe.mix {
            Mix::Any => [5, 2, 1, 2, 3, 3],
            Mix::Holes => [6, 5, 1, 1, 3, 3],
            Mix::Full => [9, 2, 1, 2, 2, 3],
            Mix::Shared => [4, 2, 1, 5, 3, 3],
        };
        let mut at = s.below(2, weights.iter().sum());
        let kind = weights.iter().position(|w| {
            let here = at < *w;
            at = at.saturating_sub(*w);
            here
        });
        match kind.unwrap_or(0) {
            0 => self.append(s, sequence),
            1 => self.remove(s, sequence),
            2 => self.shift(s, sequence),
            3 if other != sequence => self.copy(s, sequence, other),
            4 => self.save(s, sequence),
            5 => self.load(s, sequence),
            _ => self.append(s, sequence),
        }
    }

    fn append(&mut self, s: Stream, sequence: i32) {
        let cells = self.shape.kv.map_or(16, |kv| kv.cells);
        let most = if self.recipe.mix == Mix::Full { cells / 2 } else { cells / 4 }.max(1);
        let wanted = 1 + s.below(3, most as u64) as usize;
        let next = self.host.last(sequence).map_or(0, |last| last + 1);
        let has_xy = self.shape.kv.is_some_and(|kv| kv.has_xy);
        let cell = |i: usize| {
            let xy =
                if has_xy { [s.below(10 + i as u64, 64) as i32, s.below(90 + i as u64, 64) as i32] } else { [0; 2] };
            Cell { pos: next + i as i32, xy, ..Cell::default() }
        };
        // Where there is no room for all, fewer may fit.
        for count in [wanted, wanted.div_ceil(2), 1] {
            let cells: Vec<Cell> = (0..count).map(cell).collect();
            let op = Op::Append { sequence, cells, first: self.script.rows };
            if self.try_op(op) {
                self.script.rows += count;
                return;
            }
        }
    }

    fn remove(&mut self, s: Stream, sequence: i32) {
        let Some(last) = self.host.last(sequence) else { return };
        let whole = self.shape.recurrent.is_some() || s.one_in(3, 4);
        let (from, to) = if whole {
            (0, i32::MAX)
        } else {
            let from = s.below(4, last as u64 + 1) as i32;
            (from, from + 1 + s.below(5, (last - from) as u64 / 2 + 1) as i32)
        };
        self.try_op(Op::Remove { sequence, from, to });
    }

    fn shift(&mut self, s: Stream, sequence: i32) {
        let Some(last) = self.host.last(sequence) else { return };
        let from = if self.shape.recurrent.is_some() { 0 } else { s.below(3, last as u64 + 1) as i32 };
        self.try_op(Op::Shift { sequence, from, to: i32::MAX, by: 1 + s.below(4, 9) as i32 });
    }

    fn copy(&mut self, s: Stream, from: i32, to: i32) {
        if self.host.last(from).is_some() {
            self.try_op(Op::Copy { from, to, fork: s.one_in(3, 2) });
        }
    }

    fn save(&mut self, s: Stream, sequence: i32) {
        let checkpoint = self.recipe.ring > 0;
        // A checkpoint is of one sequence.
        let all = !checkpoint && s.one_in(3, 3);
        let what = if all { What::All } else { What::Sequence(sequence) };
        let partial = self.shape.kv.is_some() && self.shape.recurrent.is_some() && s.one_in(4, 3);
        self.try_op(Op::Save { what, partial, checkpoint });
    }

    fn load(&mut self, s: Stream, sequence: i32) {
        // Of checkpoints the oldest are dropped.
        let kept = if self.recipe.ring > 0 { self.recipe.ring.min(self.saves.len()) } else { self.saves.len() };
        if kept == 0 {
            return;
        }
        let save = self.saves.len() - 1 - s.below(3, kept as u64) as usize;
        let Save { what, partial } = self.saves[save];
        let into = if what == What::All { What::All } else { What::Sequence(sequence) };
        // Another device's save comes from the host; so does one with a changed byte.
        let flip = s.one_in(4, 3).then(|| s.below(5, 1 << 20) as usize);
        self.try_op(Op::Load { save, what: into, partial, flip });
    }

    /// What every case ends with, as far as there is room: a save right after an append, garbage that a whole state must
    /// replace, that saved again is the same, one sequence loaded beside others, and an append that shows the head.
    fn end(&mut self, s: Stream) {
        let save = |what| Op::Save { what, partial: false, checkpoint: false };
        let load = |save, what| Op::Load { save, what, partial: false, flip: None };
        self.append(s.at(0), 0);
        let one = self.saves.len();
        self.try_op(save(What::Sequence(0)));
        self.try_op(save(What::All));
        self.try_op(Op::Garbage(0x5a));
        self.try_op(load(one + 1, What::All));
        self.try_op(save(What::All));
        let last = self.shape.sequences() as i32 - 1;
        self.remove(s.at(1), last);
        self.try_op(load(one, What::Sequence(last)));
        self.append(s.at(2), 0);
        self.try_op(save(What::All));
    }

    /// Adds an operation if the memory can do it.
    fn try_op(&mut self, op: Op) -> bool {
        // Bytes are of no interest while operations are drawn.
        let no_rows = |_| vec![vec![]; self.shape.tensors().len()];
        let Some(saved) = apply(&mut self.host, &op, &self.saved, no_rows) else { return false };
        if let (Some(saved), Op::Save { what, partial, .. }) = (saved, &op) {
            self.saves.push(Save { what: *what, partial: *partial });
            self.saved.push(saved);
        }
        self.script.ops.push(op);
        true
    }
}

/// Does an operation to the host's memory. `rows` has the rows of each new cell. The result is `None` where the
/// operation is not possible, and has what was saved by one that saves.
#[allow(clippy::option_option)]
pub fn apply(host: &mut Host, op: &Op, saves: &[Saved], rows: impl Fn(usize) -> Vec<Vec<u8>>) -> Option<Option<Saved>> {
    match op {
        Op::Append { sequence, cells, first, .. } => {
            let new: Vec<_> = cells.iter().enumerate().map(|(i, cell)| (cell.clone(), rows(first + i))).collect();
            host.append(*sequence, &new).ok()?;
        }
        Op::Remove { sequence, from, to } => host.remove(*sequence, *from, *to),
        Op::Shift { sequence, from, to, by } => host.shift(*sequence, *from, *to, *by),
        Op::Copy { from, to, fork } => host.copy(*from, *to, *fork).ok()?,
        Op::Save { what, partial, .. } => return Some(Some(host.save(*what, *partial))),
        Op::Load { save, what, flip, .. } => {
            let mut saved = saves.get(*save)?.clone();
            if let Some(at) = flip {
                saved.flip(*at);
            }
            host.load(&saved, *what).ok()?;
        }
        Op::Garbage(byte) => host.garbage(*byte),
    }
    Some(None)
}
