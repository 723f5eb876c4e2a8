//! `argsort`: rows that fit into local memory in one launch, longer ones stage by stage.

use conform_cases::plan::{Order, Plan, Tensor};

use super::memory::Memory;
use super::program::GROUP;
use super::runtime::{Allocator, Arg, Buffer, Runtime, view};
use crate::backend::gpu::argsort_cols;
use crate::backend::{DeviceError, LoadError};

/// Entries (key and index) of a work-group that sorts short rows.
const SHORT: usize = 4 * GROUP;
/// Most entries of a work-group: 16 KiB of local memory.
const LONGEST: usize = 2048;
/// Local memory of an entry.
const ENTRY_BYTES: usize = 8;
/// Rows beyond local memory are sorted together up to this many entries: 32 MiB of scratch.
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
    /// Entries of a work-group.
    entries: usize,
    long: Option<Long>,
}

/// Scratch for rows that don't fit into local memory.
struct Long {
    /// Rows that fit into the scratch.
    rows: usize,
    keys: Buffer,
    indices: Buffer,
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
        let runtime = memory.runtime;
        let kernels = &runtime.kernels;
        let rows = rows_of(xt);
        let padded = cols.next_power_of_two();
        runtime.countable(&kernels.load_keys, (rows as u64).saturating_mul(padded.max(GROUP) as u64))?;

        let longest = longest(runtime.limits.local_mem)?;
        let long = if padded <= longest {
            kernels.argsort_rows.supported()?;
            None
        } else {
            for kernel in [&kernels.load_keys, &kernels.sort_blocks, &kernels.exchange, &kernels.store_indices] {
                kernel.supported()?;
            }
            let rows = (TOGETHER / padded).clamp(1, rows);
            let keys = memory.scratch("sort keys", rows * padded)?;
            let indices = memory.scratch("sort indices", rows * padded)?;
            Some(Long { rows, keys, indices })
        };
        let entries = padded.clamp(SHORT.min(longest), longest);
        let descending = u32::from(order == Order::Desc);
        Ok(Argsort { x, out, descending, cols, rows, padded, entries, long })
    }

    /// Scratch buffers, for poisoning.
    pub(super) fn scratch(&self) -> Vec<&Buffer> {
        self.long.iter().flat_map(|l| [&l.keys, &l.indices]).collect()
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
        let local = Arg::Local(self.entries * ENTRY_BYTES / 2);
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
            local,
            local,
        ];
        let rows_per_group = self.entries / self.padded;
        runtime.launch(&runtime.kernels.argsort_rows, self.rows.div_ceil(rows_per_group), &args)
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
        let (keys, indices) = (Arg::Buffer(&long.keys), Arg::Buffer(&long.indices));
        let all = chunk.len() * self.padded;

        let descending = Arg::U32(self.descending);
        let load = [x[0], x[1], dims, cols, padded, first_row, rows, descending, keys, indices];
        runtime.launch_items(&kernels.load_keys, all, &load)?;

        let sort_blocks = |from: usize, to: usize| {
            let local = Arg::Local(self.entries * ENTRY_BYTES / 2);
            let [from, to, entries] = [from, to, self.entries].map(|v| Arg::U32(v as u32));
            let args = [keys, indices, cols, padded, from, to, entries, local, local];
            runtime.launch(&kernels.sort_blocks, all / self.entries, &args)
        };
        sort_blocks(2, self.entries)?;
        let mut size = 2 * self.entries;
        while size <= self.padded {
            let mut stride = size / 2;
            while stride >= self.entries {
                let stage = [keys, indices, cols, padded, rows, Arg::U32(size as u32), Arg::U32(stride as u32)];
                runtime.launch_items(&kernels.exchange, all / 2, &stage)?;
                stride /= 2;
            }
            sort_blocks(size, size)?;
            size *= 2;
        }

        let store = [indices, cols, padded, first_row, rows, out[0], out[1], dims];
        runtime.launch_items(&kernels.store_indices, chunk.len() * self.cols, &store)
    }
}

fn rows_of(t: &Tensor) -> usize {
    t.shape[1..].iter().product()
}

/// The most entries a work-group can have: a power of two that leaves half of local memory to the driver.
fn longest(local_mem: u64) -> Result<usize, LoadError> {
    let fit = (local_mem / 2 / ENTRY_BYTES as u64).min(LONGEST as u64) as usize;
    if fit < 2 {
        let why = format!("argsort needs local memory, CL_DEVICE_LOCAL_MEM_SIZE is {local_mem}");
        return Err(LoadError::Unsupported(why));
    }
    Ok(1 << fit.ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_fit_into_local_memory() {
        assert_eq!(longest(1 << 20), Ok(LONGEST));
        assert_eq!(longest(32768), Ok(2048));
        assert_eq!(longest(32767), Ok(1024));
        assert!(longest(16).is_err());
    }
}
