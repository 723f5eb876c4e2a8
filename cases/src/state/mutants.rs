//! Engines that are wrong in one stage, each modelled on a bug that somebody had.

use std::collections::BTreeSet;

use super::attention::{Cell, read_cell};
use super::io::{MemoryWriter, StateWrite};
use super::shape::KvShape;
use super::stages::Stages;
use super::tensor::{CacheTensor, runs};
use crate::plan::{Part, Place};

/// An engine with a wrong stage.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// Its name.
    pub id: &'static str,
    /// The bug that it is modelled on, by its id in the list of public bugs.
    pub bug: &'static str,
    /// What is wrong.
    pub what: &'static str,
    /// Puts the wrong stage in.
    pub change: fn(&mut Stages),
}

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        id: "state-restore-clears-all",
        bug: "C6 llama.cpp #26777",
        what: "restoring one sequence clears the whole stream first",
        change: |s| s.make_room = |stream, _| stream.cells.fill(Cell::default()),
    },
    Mutant {
        id: "state-restore-resets-head",
        bug: "C6 llama.cpp #26777",
        what: "restoring one sequence sets the head to 0",
        change: |s| s.settle = |stream, _| stream.head = 0,
    },
    Mutant {
        id: "state-save-to-head",
        bug: "C1 llama.cpp de9692a7d",
        what: "a save ends at the head, not at the last cell in use",
        change: |s| {
            s.select = |stream, what| {
                let cells = (Stages::default().select)(stream, what);
                cells.into_iter().filter(|c| *c < stream.head).collect()
            }
        },
    },
    Mutant {
        id: "state-v-stride",
        bug: "C1 llama.cpp de9692a7d",
        what: "the rows of a transposed V lie as far apart as in the blob",
        change: |s| {
            s.part = |t, stream, cells, there, rows_apart| {
                let part = t.part(stream, cells, there, rows_apart);
                let stride = if t.transposed { rows_apart } else { part.here.stride };
                Part { here: Place { stride, ..part.here }, ..part }
            }
        },
    },
    Mutant {
        id: "state-size-of-rows",
        bug: "C1 llama.cpp de9692a7d",
        what: "the size that is asked for leaves the cells out",
        change: |s| s.size = |memory, what, partial, to| memory.write(what, partial, &mut RowsOnly(to)),
    },
    Mutant {
        id: "state-window-lost",
        bug: "C7 llama.cpp PR #25297",
        what: "a save leaves the oldest position out",
        change: |s| {
            s.select = |stream, what| {
                let cells = (Stages::default().select)(stream, what);
                let oldest = cells.iter().map(|c| stream.cells[*c].pos).min();
                let is_kept = |c: &usize| cells.len() < 2 || Some(stream.cells[*c].pos) != oldest;
                cells.iter().copied().filter(is_kept).collect()
            }
        },
    },
    Mutant {
        id: "state-xy-not-read",
        bug: "C10 llama.cpp PR #20273",
        what: "of one sequence the other components of a position are written and not read",
        change: |s| {
            s.read_cell = |shape, what, from, field| {
                let shape = KvShape { has_xy: shape.has_xy && what.sequence().is_none(), ..*shape };
                read_cell(&shape, what, from, field)
            }
        },
    },
    Mutant {
        id: "state-any-sequence",
        bug: "C11 llama.cpp #27439",
        what: "a sequence that the memory does not have is loaded",
        change: |s| {
            s.read_cell = |shape, what, from, field| {
                let shape = KvShape { sequences: i32::MAX as usize, ..*shape };
                read_cell(&shape, what, from, field)
            }
        },
    },
    Mutant {
        id: "state-never-finished",
        bug: "C13 llama.cpp #26828",
        what: "a load never moves its rows",
        change: |s| s.finish = |_, _| Ok(()),
    },
    Mutant {
        id: "state-partial-has-all",
        bug: "C19 ik_llama 7c57e445b",
        what: "a partial state has the attention part, which a load does not expect",
        change: |s| s.has_attention = |_, _| true,
    },
    Mutant {
        id: "state-one-range",
        bug: "C24 llama.cpp PR #28209",
        what: "cells are taken for one range from the first on",
        change: |s| {
            s.runs = |cells| {
                let first = cells.first().copied().map(|first| first..first + cells.len());
                first.into_iter().collect()
            }
        },
    },
    Mutant {
        id: "state-copy-pending",
        bug: "C20 ik_llama 4a4a6d3c1",
        what: "a save does not look where the rows of a recurrent cell have yet to be copied from",
        change: |s| s.source = |_, cell| cell,
    },
    Mutant {
        id: "state-stale-buffer",
        bug: "C22 ollama 144893850",
        what: "a buffer that is used again keeps what it held",
        change: |s| {
            s.writer = |buffer| {
                let mut writer = MemoryWriter::reusing(Vec::new());
                writer.write(&buffer);
                writer
            }
        },
    },
    Mutant {
        id: "state-cell-by-cell",
        bug: "C24 llama.cpp PR #28209",
        what: "every cell is a transfer of its own",
        change: |s| s.runs = |cells| runs(cells).into_iter().flatten().map(|c| c..c + 1).collect(),
    },
    Mutant {
        id: "state-rows-of-stream-0",
        bug: "C20 ik_llama 4a4a6d3c1",
        what: "rows of every stream are taken from the first",
        change: |s| s.part = |t: &CacheTensor, _, cells, there, apart| t.part(0, cells, there, apart),
    },
    Mutant {
        id: "state-sequences-kept",
        bug: "C15 llama.cpp #26695",
        what: "restoring one sequence leaves its old cells beside the new ones",
        change: |s| {
            s.make_room = |stream, what| {
                if what.sequence().is_none() {
                    stream.cells.iter_mut().for_each(|c| c.sequences = BTreeSet::new());
                    stream.head = 0;
                }
            }
        },
    },
];

/// Counts rows, and nothing else.
struct RowsOnly<'a>(&'a mut dyn StateWrite);

impl StateWrite for RowsOnly<'_> {
    fn write(&mut self, _: &[u8]) {}

    fn write_tensor(&mut self, part: Part) {
        self.0.write_tensor(part);
    }

    fn advance(&mut self, bytes: usize) {
        self.0.advance(bytes);
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}
