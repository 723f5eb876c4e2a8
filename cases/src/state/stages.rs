//! The steps of the engine that can be exchanged. The cases are worth what they notice when one of these is wrong.

use std::ops::Range;

use super::attention::{Cell, Stream, read_cell};
use super::io::{MemoryReader, MemoryWriter, StateError, StateRead, StateWrite, Transfers};
use super::memory::{Memory, What};
use super::recurrent::State;
use super::shape::KvShape;
use super::tensor::{CacheTensor, runs};
use crate::plan::Part;

/// A table of functions, one for each step.
#[derive(Clone, Copy)]
#[allow(clippy::type_complexity)]
pub struct Stages {
    /// The cells of a stream that are saved, ascending.
    pub select: fn(&Stream, What) -> Vec<usize>,
    /// Neighbouring cells as runs.
    pub runs: fn(&[usize]) -> Vec<Range<usize>>,
    /// The pieces of a run: tensor, stream, cells, first byte on the other side, distance of rows there.
    pub part: fn(&CacheTensor, usize, Range<usize>, usize, usize) -> Part,
    /// Takes out of a stream what a load replaces.
    pub make_room: fn(&mut Stream, What),
    /// One cell of an attention blob.
    pub read_cell: fn(&KvShape, What, &mut dyn StateRead, &dyn Fn(&str) -> String) -> Result<Cell, StateError>,
    /// What becomes of a stream's head after a load.
    pub settle: fn(&mut Stream, What),
    /// The cell that holds the rows of a recurrent cell.
    pub source: fn(&[State], usize) -> usize,
    /// Whether a blob has an attention part: of the memory, partial or not.
    pub has_attention: fn(&Memory, bool) -> bool,
    /// Measures what a save will write.
    pub size: fn(&Memory, What, bool, &mut dyn StateWrite),
    /// Prepares a buffer for being written again.
    pub writer: fn(Vec<u8>) -> MemoryWriter,
    /// Moves the rows of a load.
    pub finish: fn(MemoryReader<'_>, &mut dyn Transfers) -> Result<(), StateError>,
}

impl std::fmt::Debug for Stages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stages")
    }
}

impl Default for Stages {
    fn default() -> Self {
        Stages {
            select,
            runs,
            part: CacheTensor::part,
            make_room,
            read_cell,
            settle,
            source: |cells, cell| cells[cell].source.unwrap_or(cell),
            has_attention: Memory::has_attention,
            size: Memory::write,
            writer: MemoryWriter::reusing,
            finish: |reader, device| reader.finish(device),
        }
    }
}

/// Cells that a sequence that is meant sees.
fn select(stream: &Stream, what: What) -> Vec<usize> {
    let chosen = |c: &Cell| c.sequences.iter().any(|s| what.includes(*s));
    (0..stream.cells.len()).filter(|c| chosen(&stream.cells[*c])).collect()
}

/// A whole state goes into the first cells; one sequence only gives up its own.
fn make_room(stream: &mut Stream, what: What) {
    match what {
        What::All => {
            stream.cells.fill(Cell::default());
            stream.head = 0;
        }
        What::Sequence(sequence) => stream.remove(sequence),
    }
}

/// After a whole state the search begins behind it; one sequence leaves the head where it was.
fn settle(stream: &mut Stream, what: What) {
    if what == What::All {
        let used = stream.cells.iter().rposition(|c| !c.sequences.is_empty()).map_or(0, |last| last + 1);
        stream.head = used % stream.cells.len();
    }
}
