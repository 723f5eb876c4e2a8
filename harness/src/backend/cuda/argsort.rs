//! `argsort`: rows that fit into shared memory in one launch, longer ones stage by stage.

use conform_cases::plan::{Order, Plan, Tensor};

use super::memory::Memory;
use super::program::GROUP;
use super::runtime::{Allocator, Arg, Buffer, Runtime, view};
use crate::backend::gpu::argsort_cols;
use crate::backend::{DeviceError, LoadError};

/// Entries (key and index) of a block that sorts short rows.
const SHORT: usize = 4 * GROUP;
/// Most entries of a block: 16 KiB of shared memory, which every chip has three times.
const LONGEST: usize = 2048;
/// Bytes of an entry.
const ENTRY_BYTES: usize = 8;
/// Longer rows are sorted together up to this many entries: 32 MiB of scratch.
const TOGETHER: usize = 1 << 22;
/// Indices are i32, and the network doubles sizes in 32 bits.
const MAX_COLS: usize = 1 << 30;

/// A loaded step.
pub(super) struct Argsort {
    x: usize,
    out: usize,
    descending: u32,
    cols: usize,
    rows: usize,
    /// Columns rounded up to a power of two.
    padded: usize,
    /// Entries of a block.
    entries: usize,
    long: Option<Long>,
}

/// Scratch for rows that don't fit into shared memory.
struct Long {
    /// Rows that fit into the scratch.
    rows: usize,
    entries: Buffer,
}

impl Argsort {
    /// Checks the step against the device and allocates its scratch.
    pub(super) fn load(
        memory: &mut Allocator<'_>,
        plan: &Plan,
        [x, out]: [usize; 2],
        order: Order,
    ) -> Result<Self, LoadError> {
        let (xt, ot) = (&plan.tensors[x], &plan.tensors[out]);
        let cols = argsort_cols(xt, ot, MAX_COLS)?;
        let rows = rows_of(xt);
        let padded = cols.next_power_of_two();
        let entries = padded.clamp(SHORT, LONGEST);
        let long = if padded <= LONGEST {
            memory.runtime.kernels.argsort_rows.countable(rows.div_ceil(entries / padded) as u64)?;
            None
        } else {
            let rows = (TOGETHER / padded).clamp(1, rows);
            // An entry is two words.
            let entries = memory.scratch("sort entries", 2 * rows * padded)?;
            Some(Long { rows, entries })
        };
        let descending = u32::from(order == Order::Desc);
        Ok(Argsort { x, out, descending, cols, rows, padded, entries, long })
    }

    /// Scratch buffers, for poisoning.
    pub(super) fn scratch(&self) -> Vec<&Buffer> {
        self.long.iter().map(|l| &l.entries).collect()
    }

    /// Enqueues the step.
    pub(super) fn enqueue(&self, runtime: &Runtime, plan: &Plan, memory: &[Memory]) -> Result<(), DeviceError> {
        let x = [Arg::Buffer(&memory[plan.allocation(self.x)].raw), view(&plan.tensors[self.x])];
        let out = [Arg::Buffer(&memory[self.out].raw), view(&plan.tensors[self.out])];
        let [_, r1, r2, _] = plan.tensors[self.x].shape;
        let dims = Arg::Dims([r1 as u32, r2 as u32]);
        let Some(long) = &self.long else {
            return self.enqueue_short(runtime, x, out, dims);
        };
        for first in (0..self.rows).step_by(long.rows) {
            let rows = long.rows.min(self.rows - first);
            self.enqueue_long(runtime, long, first..first + rows, x, out, dims)?;
        }
        Ok(())
    }

    fn enqueue_short(
        &self,
        runtime: &Runtime,
        x: [Arg<'_>; 2],
        out: [Arg<'_>; 2],
        dims: Arg<'_>,
    ) -> Result<(), DeviceError> {
        let args = [
            x[0],
            x[1],
            out[0],
            out[1],
            dims,
            Arg::U32(self.cols as u32),
            Arg::U32(self.padded as u32),
            Arg::U64(self.rows as u64),
            Arg::U32(self.descending),
            Arg::U32(self.entries as u32),
        ];
        let blocks = self.rows.div_ceil(self.entries / self.padded);
        runtime.launch_sharing(&runtime.kernels.argsort_rows, blocks, self.entries * ENTRY_BYTES, &args)
    }

    fn enqueue_long(
        &self,
        runtime: &Runtime,
        long: &Long,
        chunk: std::ops::Range<usize>,
        x: [Arg<'_>; 2],
        out: [Arg<'_>; 2],
        dims: Arg<'_>,
    ) -> Result<(), DeviceError> {
        let kernels = &runtime.kernels;
        let (first_row, rows) = (Arg::U64(chunk.start as u64), Arg::U64(chunk.len() as u64));
        let (cols, padded) = (Arg::U32(self.cols as u32), Arg::U32(self.padded as u32));
        let entries = Arg::Buffer(&long.entries);
        let all = chunk.len() * self.padded;

        let load = [x[0], x[1], dims, cols, padded, first_row, rows, Arg::U32(self.descending), entries];
        runtime.launch_items(&kernels.load_entries, all, &load)?;

        let sort_blocks = |from: usize, to: usize| {
            let [from, to, count] = [from, to, self.entries].map(|v| Arg::U32(v as u32));
            let shared = self.entries * ENTRY_BYTES;
            let args = [entries, padded, from, to, count];
            runtime.launch_sharing(&kernels.sort_blocks, all / self.entries, shared, &args)
        };
        sort_blocks(2, self.entries)?;
        let mut size = 2 * self.entries;
        while size <= self.padded {
            let mut stride = size / 2;
            while stride >= self.entries {
                let stage = [entries, padded, rows, Arg::U32(size as u32), Arg::U32(stride as u32)];
                runtime.launch_items(&kernels.exchange, all / 2, &stage)?;
                stride /= 2;
            }
            sort_blocks(size, size)?;
            size *= 2;
        }

        let store = [entries, cols, padded, first_row, rows, out[0], out[1], dims];
        runtime.launch_items(&kernels.store_indices, chunk.len() * self.cols, &store)
    }
}

fn rows_of(t: &Tensor) -> usize {
    t.shape[1..].iter().product()
}
