//! `mul_mat_id` as a pipeline of launches.
//!
//! MXFP4 weights with one token go through gemv; with more, slots are sorted by
//! expert (route), their activations gathered (reorder) and tiles multiplied
//! (gemm). Every other type goes through the expert kernel in one launch. Which
//! forms of gemv and gemm these are does not matter here.

use conform_cases::formats::ElemType;
use conform_cases::plan::Plan;

use super::memory::Memory;
use super::program::{GROUP, Kernel, TILE_ROWS, TILE_SLOTS, VECTOR_LANES};
use super::runtime::{Allocator, Arg, Buffer, Runtime, view};
use crate::backend::gpu::{EXPERT_TYPES, Shape, unsupported};
use crate::backend::routing::Tables;
use crate::backend::{DeviceError, LoadError};

/// A loaded step.
pub(super) struct MulMatId {
    weights: usize,
    x: usize,
    ids: usize,
    out: usize,
    shape: Shape,
    path: Path,
}

enum Path {
    Expert { type_code: u32 },
    Gemv,
    Gemm(Box<Gemm>),
}

/// The gemm path of a step.
struct Gemm {
    /// Where its sorted slots are, and whether it was the first to need them.
    table: (usize, bool),
    /// No routing needs more tiles.
    max_tiles: usize,
    gathered: Buffer,
}

/// Slots sorted by expert. Those of one routing serve every matmul that has it.
pub(super) struct Table {
    counts: Buffer,
    tile_offset: Buffer,
    tile_expert: Buffer,
    sorted: Buffer,
}

impl MulMatId {
    /// Checks the step against the device and allocates its scratch.
    pub(super) fn load(
        memory: &mut Allocator<'_>,
        plan: &Plan,
        [weights, x, ids, out]: [usize; 4],
        tables: &mut Tables,
    ) -> Result<Self, LoadError> {
        let tensors = &plan.tensors;
        let shape = Shape::new([&tensors[weights], &tensors[x], &tensors[ids], &tensors[out]], TILE_SLOTS)?;
        let runtime = memory.runtime;
        let kernels = &runtime.kernels;
        let outputs = (shape.slots() as u64).saturating_mul(shape.rows as u64);
        let path = match tensors[weights].ty {
            ElemType::Mxfp4 if shape.tokens == 1 => {
                kernels.gemv.supported()?;
                runtime.countable(&kernels.gemv, outputs.saturating_mul(GROUP as u64))?;
                Path::Gemv
            }
            ElemType::Mxfp4 => {
                let table = tables.table(plan, ids, shape.experts);
                Path::Gemm(Box::new(Gemm::new(memory, &shape, table)?))
            }
            ty => {
                let Some(type_code) = EXPERT_TYPES.iter().position(|t| *t == ty) else {
                    return unsupported(format!("{ty} weights"));
                };
                runtime.countable(&kernels.expert, outputs)?;
                kernels.expert.supported()?;
                Path::Expert { type_code: type_code as u32 }
            }
        };
        Ok(MulMatId { weights, x, ids, out, shape, path })
    }

    /// Brings the converted form of the weights up to date where this step reads it.
    pub(super) fn convert_weights(
        &self,
        runtime: &Runtime,
        plan: &Plan,
        memory: &mut [Memory],
    ) -> Result<(), DeviceError> {
        let weights = &mut memory[self.weights];
        match &mut weights.converted {
            Some(converted) => converted.update(runtime, &plan.tensors[self.weights], &weights.raw),
            None => Ok(()),
        }
    }

    /// Memory for sorted slots, if no earlier step needs the same. So many tables are there.
    pub(super) fn new_table(&self, memory: &mut Allocator<'_>, count: usize) -> Result<Option<Table>, LoadError> {
        match &self.path {
            Path::Gemm(gemm) if gemm.table == (count, true) => {
                Table::new(memory, self.shape.experts, gemm.max_tiles).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Scratch buffers, for poisoning.
    pub(super) fn scratch(&self) -> Vec<&Buffer> {
        match &self.path {
            Path::Gemm(gemm) => vec![&gemm.gathered],
            _ => Vec::new(),
        }
    }

    /// Enqueues the step. Weights are converted already.
    pub(super) fn enqueue(
        &self,
        runtime: &Runtime,
        plan: &Plan,
        memory: &[Memory],
        tables: &mut Tables,
        sorted: &[Table],
    ) -> Result<(), DeviceError> {
        let s = &self.shape;
        let tensor = |i: usize| (Arg::Buffer(&memory[plan.allocation(i)].raw), view(&plan.tensors[i]));
        let (x, x_view) = tensor(self.x);
        let (ids, ids_view) = tensor(self.ids);
        let (out, out_view) = tensor(self.out);
        let [k, rows, experts, per_token, used, slots] =
            [s.k, s.rows, s.experts, s.per_token, s.used, s.slots()].map(|v| Arg::U32(v as u32));
        let launch = |kernel: &Kernel, groups, args: &[Arg<'_>]| runtime.launch(kernel, groups, args);
        let launch_items = |kernel: &Kernel, items, args: &[Arg<'_>]| runtime.launch_items(kernel, items, args);
        let kernels = &runtime.kernels;

        if let Path::Expert { type_code } = self.path {
            let (w, w_view) = tensor(self.weights);
            let head = [Arg::U32(type_code), w, w_view, k, rows, experts, x, x_view, per_token];
            let tail = [ids, ids_view, used, slots, out, out_view];
            return launch_items(&kernels.expert, s.slots() * s.rows, &[&head[..], &tail[..]].concat());
        }

        let converted = memory[self.weights].converted.as_ref();
        let converted = converted.ok_or_else(|| DeviceError("mxfp4 weights have no converted form".to_owned()))?;
        let (scale, code) = (Arg::Buffer(&converted.scale), Arg::Buffer(&converted.code));
        let Path::Gemm(gemm) = &self.path else {
            let args = [scale, code, k, rows, experts, x, x_view, per_token, ids, ids_view, out, out_view];
            return launch(&kernels.gemv, s.used * s.rows.div_ceil(VECTOR_LANES), &args);
        };

        let table = &sorted[gemm.table.0];
        let [counts, tile_offset, tile_expert, sorted, gathered] =
            [&table.counts, &table.tile_offset, &table.tile_expert, &table.sorted, &gemm.gathered].map(Arg::Buffer);
        let places = gemm.max_tiles * TILE_SLOTS;
        if !tables.is_good(gemm.table.0) {
            runtime.fill(&table.counts, 0)?;
            launch_items(&kernels.histogram, s.slots(), &[ids, ids_view, used, slots, experts, counts])?;
            launch(&kernels.scan, 1, &[counts, experts, tile_offset])?;
            launch_items(&kernels.pad, places, &[tile_offset, experts, sorted])?;
            let scatter = [ids, ids_view, used, slots, experts, tile_offset, counts, tile_expert, sorted];
            launch_items(&kernels.scatter, s.slots(), &scatter)?;
            tables.made(gemm.table.0);
        }
        let reorder = [x, x_view, k, per_token, used, experts, tile_offset, sorted, gathered];
        launch_items(&kernels.reorder, places * s.k, &reorder)?;
        let multiply = [scale, code, k, rows, experts, used, tile_offset, tile_expert, sorted, gathered, out, out_view];
        launch(&kernels.gemm, gemm.max_tiles * s.rows.div_ceil(TILE_ROWS), &multiply)
    }
}

impl Gemm {
    fn new(memory: &mut Allocator<'_>, s: &Shape, table: (usize, bool)) -> Result<Self, LoadError> {
        let runtime = memory.runtime;
        let kernels = &runtime.kernels;
        for kernel in
            [&kernels.histogram, &kernels.scan, &kernels.pad, &kernels.scatter, &kernels.reorder, &kernels.gemm]
        {
            kernel.supported()?;
        }
        // Each expert leaves at most one tile partly filled, and a tile holds at least one slot.
        let max_tiles = (s.slots() / TILE_SLOTS + s.experts).min(s.slots());
        let places = max_tiles * TILE_SLOTS;
        let values = (places as u64).saturating_mul(s.k as u64);
        runtime.countable(&kernels.reorder, values)?;
        runtime.countable(&kernels.gemm, (max_tiles as u64).saturating_mul(s.rows as u64 + TILE_ROWS as u64))?;
        Ok(Gemm { table, max_tiles, gathered: memory.scratch("sorted activations", places * s.k)? })
    }
}

impl Table {
    fn new(memory: &mut Allocator<'_>, experts: usize, max_tiles: usize) -> Result<Self, LoadError> {
        Ok(Table {
            counts: memory.scratch("slots per expert", experts)?,
            tile_offset: memory.scratch("first tile per expert", experts + 1)?,
            tile_expert: memory.scratch("expert per tile", max_tiles)?,
            sorted: memory.scratch("sorted slots", max_tiles * TILE_SLOTS)?,
        })
    }

    /// Scratch buffers, for poisoning.
    pub(super) fn scratch(&self) -> [&Buffer; 4] {
        [&self.counts, &self.tile_offset, &self.tile_expert, &self.sorted]
    }
}
