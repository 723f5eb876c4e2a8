//! The recurrent memory of the engine: one cell for each sequence, with its whole state.
//!
//! ```text
//! u32 cells
//! per cell: i32 position, u32 sequences (0 where one sequence is saved), i32 sequence...
//! u32 S is transposed, u32 layers (those of attention in a hybrid's too, which have no rows here)
//! per layer R: i32 type, u64 row bytes, rows
//! per layer S: the same; transposed: i32 type, u32 element bytes, u32 elements, for each element: cells
//! ```

use std::collections::BTreeSet;

use super::blob::{Numbers, Rows};
use super::io::{StateError, StateRead, StateWrite, refused};
use super::memory::What;
use super::shape::RecurrentShape;
use super::stages::Stages;
use super::tensor::CacheTensor;

/// Bytes of a cell in the blob of one sequence.
const LEAST_OF_A_CELL: usize = 8;

/// A cell; without sequences it is free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The last position that the state has seen.
    pub pos: i32,
    /// Sequences whose state it is.
    pub sequences: BTreeSet<i32>,
    /// The cell that its rows have yet to be copied from.
    pub source: Option<usize>,
}

/// A recurrent memory.
#[derive(Clone, Debug)]
pub struct Recurrent {
    /// What it consists of.
    pub shape: RecurrentShape,
    /// Its tensors: R of every layer, then S.
    pub tensors: Vec<CacheTensor>,
    /// Its cells.
    pub cells: Vec<State>,
}

/// What a load will make of the cells, once the rows are there.
#[derive(Debug)]
pub struct Pending {
    cells: Vec<State>,
}

impl Recurrent {
    /// An empty memory whose first tensor has this position in the plan.
    pub fn new(shape: RecurrentShape, first: usize) -> Self {
        Recurrent { shape, tensors: shape.tensors(first), cells: vec![State::default(); shape.cells] }
    }

    /// The cell of a sequence.
    pub fn cell(&self, sequence: i32) -> Option<usize> {
        self.cells.iter().position(|c| c.sequences.contains(&sequence))
    }

    /// The cell that a sequence writes its next state into, after `pos`. One that it shares is left to the others.
    pub fn advance(&mut self, sequence: i32, pos: i32) -> Result<usize, StateError> {
        let cell = match self.cell(sequence) {
            Some(own) if self.cells[own].sequences.len() == 1 => own,
            shared => {
                let free = self.find(1)?.start;
                if let Some(shared) = shared {
                    self.cells[shared].sequences.remove(&sequence);
                }
                free
            }
        };
        self.cells[cell] = State { pos, sequences: BTreeSet::from([sequence]), source: None };
        Ok(cell)
    }

    /// Copies that must be made before a cell is written: target and source of each.
    pub fn due(&mut self) -> Vec<(usize, usize)> {
        let mut due = Vec::new();
        for (i, cell) in self.cells.iter_mut().enumerate() {
            if let Some(source) = cell.source.take() {
                due.push((i, source));
            }
        }
        due
    }

    /// Takes a sequence out.
    pub fn remove(&mut self, sequence: i32) {
        self.cells.iter_mut().for_each(|c| _ = c.sequences.remove(&sequence));
        // Rows that were to come from a cell come from there as long as nothing else is written to it; a cell without
        // sequences waits for nothing.
        self.cells.iter_mut().filter(|c| c.sequences.is_empty()).for_each(|c| c.source = None);
    }

    /// Moves the position of a sequence by `by`.
    pub fn shift(&mut self, sequence: i32, by: i32) {
        if let Some(cell) = self.cell(sequence) {
            self.cells[cell].pos += by;
        }
    }

    /// Lets another sequence share the state of one.
    pub fn share(&mut self, from: i32, to: i32) {
        self.remove(to);
        if let Some(cell) = self.cell(from) {
            self.cells[cell].sequences.insert(to);
        }
    }

    /// Gives another sequence a cell of its own, whose rows will be copied from that of `from`.
    pub fn fork(&mut self, from: i32, to: i32) -> Result<(), StateError> {
        self.remove(to);
        let Some(cell) = self.cell(from) else { return Ok(()) };
        let free = self.find(1)?.start;
        let (pos, source) = (self.cells[cell].pos, self.cells[cell].source.unwrap_or(cell));
        self.cells[free] = State { pos, sequences: BTreeSet::from([to]), source: Some(source) };
        Ok(())
    }

    /// The first block of free neighbours. A cell that another waits for is not free.
    pub fn find(&self, count: usize) -> Result<std::ops::Range<usize>, StateError> {
        let awaited: BTreeSet<usize> = self.cells.iter().filter_map(|c| c.source).collect();
        let is_free = |c: &usize| self.cells[*c].sequences.is_empty() && !awaited.contains(c);
        let starts = 0..(self.cells.len() + 1).saturating_sub(count);
        let block = starts.map(|start| start..start + count).find(|block| block.clone().all(|c| is_free(&c)));
        block.ok_or_else(|| StateError::NotPossible(format!("no room for {count} recurrent cells side by side")))
    }

    /// Writes the state of one sequence, or all.
    pub fn save(&self, what: What, to: &mut dyn StateWrite, stages: &Stages) {
        let chosen = |c: &State| c.sequences.iter().any(|s| what.includes(*s));
        let cells: Vec<usize> = (0..self.cells.len()).filter(|c| chosen(&self.cells[*c])).collect();
        to.write(&(cells.len() as u32).to_le_bytes());
        for cell in cells.iter().map(|c| &self.cells[*c]) {
            to.write(&cell.pos.to_le_bytes());
            let sequences = cell.sequences.iter().filter(|_| what == What::All);
            to.write(&(sequences.clone().count() as u32).to_le_bytes());
            sequences.for_each(|s| to.write(&s.to_le_bytes()));
        }
        let sources: Vec<usize> = cells.iter().map(|c| (stages.source)(&self.cells, *c)).collect();
        self.rows(&sources).write(to, stages);
    }

    /// Reads a blob and records the transfers. Nothing changes before the result is [committed](Self::commit).
    pub fn load(&self, what: What, from: &mut dyn StateRead, stages: &Stages) -> Result<Pending, StateError> {
        let shape = &self.shape;
        let at = from.bytes();
        let count = from.at_most(&|| "recurrent cells".to_owned(), shape.cells, "recurrent cells")?;
        if what.sequence().is_some() && count > 1 {
            let what = format!("the blob of one sequence has {count}, must be 1 at most");
            return Err(refused(|| "recurrent cells".to_owned(), at, what));
        }
        let mut loaded = Vec::with_capacity(count.min(from.left() / LEAST_OF_A_CELL));
        let mut seen = BTreeSet::new();
        for i in 0..count {
            loaded.push(self.read_cell(what, i, from, &mut seen)?);
        }
        let mut memory = self.clone();
        match what {
            What::All => memory.cells.fill(State::default()),
            What::Sequence(sequence) => memory.remove(sequence),
        }
        let block = memory.find(count)?;
        let cells: Vec<usize> = block.collect();
        for (place, cell) in cells.iter().zip(loaded) {
            memory.cells[*place] = cell;
        }
        self.rows(&cells).read(from, stages)?;
        Ok(Pending { cells: memory.cells })
    }

    fn read_cell(
        &self,
        what: What,
        i: usize,
        from: &mut dyn StateRead,
        seen: &mut BTreeSet<i32>,
    ) -> Result<State, StateError> {
        let field = |what: &str| format!("recurrent cell {i} {what}");
        let at = from.bytes();
        let pos = from.i32(&|| field("position"))?;
        if pos < 0 {
            return Err(refused(|| field("position"), at, format!("{pos} is no position")));
        }
        let at = from.bytes();
        let count = from.at_most(&|| field("sequences"), self.shape.sequences, "sequences")?;
        let fits = if what == What::All { count > 0 } else { count == 0 };
        if !fits {
            let want = if what == What::All { "at least one" } else { "0 in the blob of one sequence" };
            return Err(refused(|| field("sequences"), at, format!("has {count}, must be {want}")));
        }
        let mut sequences = BTreeSet::from_iter(what.sequence());
        for _ in 0..count {
            let at = from.bytes();
            let sequence = from.i32(&|| field("sequence"))?;
            let known = usize::try_from(sequence).is_ok_and(|s| s < self.shape.sequences);
            // They are a set, and written in order; no two states are of one sequence.
            let ascends = sequences.last().is_none_or(|last| *last < sequence);
            if known && ascends && seen.insert(sequence) {
                sequences.insert(sequence);
                continue;
            }
            let what = format!("the blob has {sequence}, twice, out of order or not of {}", self.shape.sequences);
            return Err(refused(|| field("sequence"), at, what));
        }
        Ok(State { pos, sequences, source: None })
    }

    /// Makes a load true.
    pub fn commit(&mut self, pending: Pending) {
        self.cells = pending.cells;
    }

    fn rows<'a>(&'a self, cells: &'a [usize]) -> Rows<'a> {
        Rows {
            tensors: &self.tensors,
            transposed: self.shape.s_trans,
            flag: "S is transposed",
            stream: 0,
            others: self.shape.others,
            cells,
        }
    }
}
