//! The attention KV cache of the engine: which cells hold which positions of which sequences.
//!
//! ```text
//! u32 streams
//! per stream:  u32 cells                    0: nothing more of this stream
//!              per cell, ascending: i32 position, u32 sequences, [i32 x, i32 y], i32 sequence...
//!              u32 V is transposed, u32 layers
//!              per layer K: i32 type, u64 row bytes, rows
//!              per layer V: the same; transposed: i32 type, u32 element bytes, u32 elements, for each element: cells
//! ```

use std::collections::BTreeSet;

use super::blob::{Numbers, Rows};
use super::io::{StateError, StateRead, StateWrite, refused};
use super::memory::What;
use super::shape::KvShape;
use super::stages::Stages;
use super::tensor::CacheTensor;

/// Bytes of a cell with one sequence, in a blob.
const LEAST_OF_A_CELL: usize = 12;

/// A cell of a stream; without sequences it is free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Position.
    pub pos: i32,
    /// The other components of the position, where there are any.
    pub xy: [i32; 2],
    /// Sequences that see it.
    pub sequences: BTreeSet<i32>,
}

/// The cells of one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// All of them.
    pub cells: Vec<Cell>,
    /// Where the search for free ones begins.
    pub head: usize,
}

impl Stream {
    /// Takes a sequence out of every cell.
    pub fn remove(&mut self, sequence: i32) {
        self.cells.iter_mut().for_each(|cell| _ = cell.sequences.remove(&sequence));
    }

    /// The first `count` free cells from the head on; after the last cell the search goes on with the first.
    pub fn find(&self, count: usize) -> Option<Vec<usize>> {
        let len = self.cells.len();
        let order = (0..len).map(|i| (self.head + i) % len);
        let free: Vec<usize> = order.filter(|c| self.cells[*c].sequences.is_empty()).take(count).collect();
        (free.len() == count).then_some(free)
    }
}

/// An attention KV cache.
#[derive(Clone, Debug)]
pub struct Attention {
    /// What it consists of.
    pub shape: KvShape,
    /// Its tensors: K of every layer, then V.
    pub tensors: Vec<CacheTensor>,
    /// Its cells.
    pub streams: Vec<Stream>,
}

/// What a load will make of the cells, once the rows are there.
#[derive(Debug)]
pub struct Pending {
    streams: Vec<Stream>,
}

impl Attention {
    /// An empty cache whose first tensor has this position in the plan.
    pub fn new(shape: KvShape, first: usize) -> Self {
        let stream = Stream { cells: vec![Cell::default(); shape.cells], head: 0 };
        Attention { shape, tensors: shape.tensors(first), streams: vec![stream; shape.streams] }
    }

    /// Cells for `positions` more of a sequence, in order: the stream, and the cells. They are taken, and what a sliding
    /// window has left behind is given up.
    pub fn append(&mut self, sequence: i32, positions: &[Cell]) -> Result<(usize, Vec<usize>), StateError> {
        let at = self.shape.stream(sequence);
        let stream = &mut self.streams[at];
        let cells = stream.find(positions.len());
        let cells = cells.ok_or_else(|| no_room(positions.len(), at))?;
        for (cell, new) in cells.iter().zip(positions) {
            stream.cells[*cell] = Cell { sequences: BTreeSet::from([sequence]), ..new.clone() };
        }
        if let Some(last) = cells.last() {
            stream.head = (last + 1) % stream.cells.len();
        }
        if let (1.., Some(newest)) = (self.shape.window, positions.iter().map(|p| p.pos).max()) {
            let oldest = newest - self.shape.window as i32;
            for cell in stream.cells.iter_mut().filter(|c| c.pos <= oldest) {
                cell.sequences.remove(&sequence);
            }
        }
        Ok((at, cells))
    }

    /// Takes the positions `from..to` of a sequence out.
    pub fn remove(&mut self, sequence: i32, from: i32, to: i32) {
        for cell in self.of(sequence).filter(|c| (from..to).contains(&c.pos)) {
            cell.sequences.remove(&sequence);
        }
    }

    /// Moves the positions `from..to` of a sequence by `by`.
    pub fn shift(&mut self, sequence: i32, from: i32, to: i32, by: i32) {
        self.of(sequence).filter(|c| (from..to).contains(&c.pos)).for_each(|c| c.pos += by);
    }

    /// Lets another sequence see all cells of one. In another stream they are copied: the result is then source and
    /// destination, stream and cells each.
    #[allow(clippy::type_complexity)]
    pub fn copy(
        &mut self,
        from: i32,
        to: i32,
    ) -> Result<Option<((usize, Vec<usize>), (usize, Vec<usize>))>, StateError> {
        let (source, target) = (self.shape.stream(from), self.shape.stream(to));
        self.streams[target].remove(to);
        let cells = self.streams[source].cells.iter().enumerate().filter(|(_, c)| c.sequences.contains(&from));
        let (cells, copies): (Vec<usize>, Vec<Cell>) = cells.map(|(i, c)| (i, c.clone())).unzip();
        if source == target {
            cells.iter().for_each(|c| _ = self.streams[source].cells[*c].sequences.insert(to));
            return Ok(None);
        }
        let stream = &mut self.streams[target];
        let places = stream.find(cells.len()).ok_or_else(|| no_room(cells.len(), target))?;
        for (place, cell) in places.iter().zip(copies) {
            stream.cells[*place] = Cell { sequences: BTreeSet::from([to]), ..cell };
        }
        Ok(Some(((source, cells), (target, places))))
    }

    fn of(&mut self, sequence: i32) -> impl Iterator<Item = &mut Cell> {
        let stream = &mut self.streams[self.shape.stream(sequence)];
        stream.cells.iter_mut().filter(move |c| c.sequences.contains(&sequence))
    }

    /// Writes the cells of one sequence, or all that are in use.
    pub fn save(&self, what: What, to: &mut dyn StateWrite, stages: &Stages) {
        to.write(&(self.shape.streams as u32).to_le_bytes());
        for (s, stream) in self.streams.iter().enumerate() {
            let cells = (stages.select)(stream, what);
            to.write(&(cells.len() as u32).to_le_bytes());
            if cells.is_empty() {
                continue;
            }
            for cell in cells.iter().map(|c| &stream.cells[*c]) {
                let sequences = cell.sequences.iter().filter(|s| what.includes(**s));
                to.write(&cell.pos.to_le_bytes());
                to.write(&(sequences.clone().count() as u32).to_le_bytes());
                if self.shape.has_xy {
                    cell.xy.iter().for_each(|c| to.write(&c.to_le_bytes()));
                }
                sequences.for_each(|s| to.write(&s.to_le_bytes()));
            }
            self.rows(s, &cells).write(to, stages);
        }
    }

    /// Reads a blob and records the transfers. Nothing changes before the result is [committed](Self::commit).
    pub fn load(&self, what: What, from: &mut dyn StateRead, stages: &Stages) -> Result<Pending, StateError> {
        let shape = &self.shape;
        from.expect_u32(&|| "streams".to_owned(), shape.streams as u32)?;
        let mut streams = self.streams.clone();
        for (s, stream) in streams.iter_mut().enumerate() {
            if what.sequence().is_none_or(|sequence| shape.stream(sequence) == s) {
                (stages.make_room)(stream, what);
            }
        }
        let mut whole = None;
        for s in 0..shape.streams {
            let at = from.bytes();
            let count = from.at_most(&|| format!("stream {s} cells"), shape.cells, "cells in a stream")?;
            if count == 0 {
                continue;
            }
            if let Some(first) = whole.replace(s).filter(|_| what != What::All) {
                let why = format!("the blob of one sequence has {count}, and some in stream {first}");
                return Err(refused(|| format!("stream {s} cells"), at, why));
            }
            // One sequence goes into its own stream, whichever it was saved from.
            let target = what.sequence().map_or(s, |sequence| shape.stream(sequence));
            let mut loaded = Vec::with_capacity(count.min(from.left() / LEAST_OF_A_CELL));
            for i in 0..count {
                let field = |what: &str| format!("stream {s} cell {i} {what}");
                loaded.push((stages.read_cell)(shape, what, from, &field)?);
            }
            let stream = &mut streams[target];
            let cells = stream.find(count).ok_or_else(|| no_room(count, target))?;
            for (place, cell) in cells.iter().zip(loaded) {
                stream.cells[*place] = cell;
            }
            self.rows(target, &cells).read(from, stages)?;
        }
        streams.iter_mut().for_each(|stream| (stages.settle)(stream, what));
        Ok(Pending { streams })
    }

    /// Makes a load true.
    pub fn commit(&mut self, pending: Pending) {
        self.streams = pending.streams;
    }

    fn rows<'a>(&'a self, stream: usize, cells: &'a [usize]) -> Rows<'a> {
        Rows {
            tensors: &self.tensors,
            transposed: self.shape.v_trans,
            flag: "V is transposed",
            stream,
            others: 0,
            cells,
        }
    }
}

/// One cell of a blob. Of one sequence each cell has exactly that one, and its stored number does not matter.
pub(super) fn read_cell(
    shape: &KvShape,
    what: What,
    from: &mut dyn StateRead,
    field: &dyn Fn(&str) -> String,
) -> Result<Cell, StateError> {
    let at = from.bytes();
    let pos = from.i32(&|| field("position"))?;
    if pos < 0 {
        return Err(refused(|| field("position"), at, format!("{pos} is no position")));
    }
    let at = from.bytes();
    let count = from.at_most(&|| field("sequences"), shape.sequences, "sequences")?;
    if count == 0 || what.sequence().is_some() && count != 1 {
        let want = if count == 0 { "at least one" } else { "exactly one in the blob of one sequence" };
        return Err(refused(|| field("sequences"), at, format!("has {count}, must be {want}")));
    }
    let mut xy = [0; 2];
    if shape.has_xy {
        xy = [from.i32(&|| field("x"))?, from.i32(&|| field("y"))?];
    }
    let mut sequences = BTreeSet::new();
    for _ in 0..count {
        let at = from.bytes();
        let sequence = from.i32(&|| field("sequence"))?;
        let known = usize::try_from(sequence).is_ok_and(|s| s < shape.sequences);
        // They are a set, and written in order.
        let last = sequences.last().copied();
        if !known || last.is_some_and(|last| last >= sequence) {
            let why = last.filter(|_| known).map_or(format!("of {}", shape.sequences), |last| format!("after {last}"));
            return Err(refused(|| field("sequence"), at, format!("the blob has {sequence} {why}")));
        }
        sequences.insert(sequence);
    }
    if let Some(sequence) = what.sequence() {
        sequences = BTreeSet::from([sequence]);
    }
    Ok(Cell { pos, xy, sequences })
}

fn no_room(cells: usize, stream: usize) -> StateError {
    StateError::NotPossible(format!("no room for {cells} cells in stream {stream}"))
}
