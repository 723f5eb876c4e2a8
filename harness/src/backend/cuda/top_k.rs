//! `top_k`: a block for each row, in one launch whatever the sizes are.

use conform_cases::plan::Plan;

use super::memory::Memory;
use super::runtime::{Allocator, Arg, Runtime, view};
use crate::backend::gpu::top_k_sizes;
use crate::backend::{DeviceError, LoadError};

/// A loaded step.
pub(super) struct TopK {
    x: usize,
    out: usize,
    cols: u32,
    k: u32,
    rows: usize,
}

impl TopK {
    /// Checks the step against the device. It needs no scratch.
    pub(super) fn load(memory: &Allocator<'_>, plan: &Plan, [x, out]: [usize; 2]) -> Result<Self, LoadError> {
        let (xt, ot) = (&plan.tensors[x], &plan.tensors[out]);
        let (cols, k, rows) = top_k_sizes(xt, ot)?;
        memory.runtime.kernels.top_k.countable(rows as u64)?;
        Ok(TopK { x, out, cols, k, rows })
    }

    /// Enqueues the step.
    pub(super) fn enqueue(&self, runtime: &Runtime, plan: &Plan, memory: &[Memory]) -> Result<(), DeviceError> {
        let [_, r1, r2, _] = plan.tensors[self.x].shape;
        let args = [
            Arg::Buffer(&memory[plan.allocation(self.x)].raw),
            view(&plan.tensors[self.x]),
            Arg::Buffer(&memory[self.out].raw),
            view(&plan.tensors[self.out]),
            Arg::Dims([r1 as u32, r2 as u32]),
            Arg::U32(self.cols),
            Arg::U32(self.k),
        ];
        runtime.launch(&runtime.kernels.top_k, self.rows, &args)
    }
}
