//! `mul_mat_id` as a pipeline of launches.
//!
//! MXFP4 weights with one token go through gemv; with more, slots are sorted by
//! expert (route), their activations gathered and tiles multiplied: reorder and
//! gemm in f32, or split and gemm_tensor where the chip has tensor cores for
//! bf16. Every other type goes through the expert kernel in one launch.

use conform_cases::formats::ElemType;
use conform_cases::plan::Plan;

use super::memory::Memory;
use super::program::{TENSOR_ROWS, TILE_ROWS, TILE_SLOTS, VECTOR_LANES};
use super::runtime::{Allocator, Arg, Buffer, Kernel, Runtime, view};
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
    gathered: Gathered,
}

/// Slots sorted by expert. Those of one routing serve every matmul that has it.
pub(super) struct Table {
    counts: Buffer,
    tile_offset: Buffer,
    tile_expert: Buffer,
    sorted: Buffer,
}

/// Activations in the order of sorted slots.
enum Gathered {
    /// As they are, for gemm.
    Whole(Buffer),
    /// Each in three numbers, scaled, and what scales a row back: for gemm_tensor.
    Split { parts: Buffer, unscale: Buffer },
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
        let kernels = &memory.runtime.kernels;
        let slots = shape.slots() as u64;
        let path = match tensors[weights].ty {
            ElemType::Mxfp4 if shape.tokens == 1 => {
                kernels.gemv.countable(slots.saturating_mul(shape.rows.div_ceil(VECTOR_LANES) as u64))?;
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
                kernels.expert.countable_items(slots.saturating_mul(shape.rows as u64))?;
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
            Path::Gemm(gemm) => match &gemm.gathered {
                Gathered::Whole(rows) => vec![rows],
                Gathered::Split { parts, unscale } => vec![parts, unscale],
            },
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
        let [counts, tile_offset, tile_expert, sorted] =
            [&table.counts, &table.tile_offset, &table.tile_expert, &table.sorted].map(Arg::Buffer);
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
        let gather = [x, x_view, k, per_token, used, experts, tile_offset, sorted];
        let multiply = [scale, code, k, rows, experts, used, tile_offset, tile_expert, sorted];
        let result = [out, out_view];
        match &gemm.gathered {
            Gathered::Whole(gathered) => {
                let gathered = [Arg::Buffer(gathered)];
                launch(&kernels.reorder, places, &[&gather[..], &gathered].concat())?;
                let blocks = gemm.max_tiles * s.rows.div_ceil(TILE_ROWS);
                launch(&kernels.gemm, blocks, &[&multiply[..], &gathered, &result].concat())
            }
            Gathered::Split { parts, unscale } => {
                let gathered = [Arg::Buffer(parts), Arg::Buffer(unscale)];
                launch(&kernels.split, places, &[&gather[..], &gathered].concat())?;
                let blocks = gemm.max_tiles * s.rows.div_ceil(TENSOR_ROWS);
                launch(&kernels.gemm_tensor, blocks, &[&multiply[..], &gathered, &result].concat())
            }
        }
    }
}

impl Gemm {
    fn new(memory: &mut Allocator<'_>, s: &Shape, table: (usize, bool)) -> Result<Self, LoadError> {
        // Each expert leaves at most one tile partly filled, and a tile holds at least one slot.
        let max_tiles = (s.slots() / TILE_SLOTS + s.experts).min(s.slots());
        let places = max_tiles * TILE_SLOTS;
        let kernels = &memory.runtime.kernels;
        kernels.reorder.countable(places as u64)?;
        kernels.gemm.countable((max_tiles as u64).saturating_mul(s.rows.div_ceil(TILE_ROWS) as u64))?;
        Ok(Gemm { table, max_tiles, gathered: Gathered::new(memory, places, s.k)? })
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

impl Gathered {
    fn new(memory: &mut Allocator<'_>, places: usize, k: usize) -> Result<Self, LoadError> {
        let values = places.saturating_mul(k);
        if !memory.runtime.tensor_cores {
            return Ok(Gathered::Whole(memory.scratch("sorted activations", values)?));
        }
        // Three numbers of half a word for each value.
        let parts = memory.scratch("parts of sorted activations", values.saturating_mul(3).div_ceil(2))?;
        let unscale = memory.scratch("scales of sorted activations", places)?;
        Ok(Gathered::Split { parts, unscale })
    }
}
