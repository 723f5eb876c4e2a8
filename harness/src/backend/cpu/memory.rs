//! Memory of a loaded plan: a buffer for each tensor, and scratch that all steps share, all of it between guards.

use conform_cases::formats::ElemType;
use conform_cases::plan::{Plan, Role, Tensor};
use rayon::prelude::*;

use super::super::{DeviceError, Guards, LoadError};
use super::arguments::{Interleaved, Sizes, TILE_ROWS, TILE_SLOTS, View, Weights};
use super::check::Job;
use super::guarded::Guarded;
use super::stages::Stages;

/// Scratch is this until a stage writes it: padding as a slot, NaN as a number, far out of range as a count.
const INITIAL: u32 = u32::MAX;

/// The product of some sizes, or `None` where it cannot be counted.
fn product(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1usize, |all, size| all.checked_mul(*size))
}

/// A tensor's allocation, and its converted form if it is mxfp4 weights.
pub(super) struct Buffer {
    /// What was written. The view's part of mxfp4 weights is only ever read by the conversion.
    pub(super) bytes: Guarded<u8>,
    converted: Option<Converted>,
}

/// mxfp4 weights in the interleaved layout.
struct Converted {
    scales: Guarded<u8>,
    codes: Guarded<u32>,
    /// The bytes were written after the last conversion.
    stale: bool,
    /// The allocation as the converted form gives it back: kept from a read until a write or a run.
    restored: Option<Guarded<u8>>,
}

impl Buffer {
    /// Allocates a checked tensor; `interleave` says that it will be converted.
    pub(super) fn new(tensor: &Tensor, interleave: bool) -> Result<Self, LoadError> {
        let bytes = Guarded::new(&tensor.name, Some(tensor.parent_bytes()), 0)?;
        let converted = if interleave {
            let blocks = tensor.elements() / tensor.ty.block_len();
            let named = |what| format!("{what} of {}", tensor.name);
            let scales = Guarded::new(&named("scales"), Some(blocks), 0)?;
            let codes = Guarded::new(&named("codes"), product(&[4, blocks]), 0)?;
            Some(Converted { scales, codes, stale: true, restored: None })
        } else {
            None
        };
        Ok(Buffer { bytes, converted })
    }

    /// What a view has.
    fn none() -> Self {
        Buffer { bytes: Guarded::default(), converted: None }
    }

    /// Changes the written bytes.
    pub(super) fn write(&mut self, span: std::ops::Range<usize>, bytes: &[u8]) {
        self.bytes[span].copy_from_slice(bytes);
        if let Some(c) = &mut self.converted {
            (c.stale, c.restored) = (true, None);
        }
    }

    /// Copies bytes inside of the allocation as a reader sees them: to be read before, so that it is known how.
    pub(super) fn copy_within(&mut self, span: std::ops::Range<usize>, to: usize) {
        if let Some(c) = &mut self.converted {
            if let Some(restored) = c.restored.take() {
                self.bytes.copy_from_slice(&restored);
            }
            c.stale = true;
        }
        self.bytes.copy_within(span, to);
    }

    /// Brings the converted form up to date, and drops what was restored from it.
    pub(super) fn convert(&mut self, tensor: &Tensor, stages: &Stages) {
        let Some(c) = &mut self.converted else { return };
        c.restored = None;
        if std::mem::take(&mut c.stale) {
            (stages.convert)(View { tensor, bytes: &self.bytes }, &mut c.scales, &mut c.codes);
        }
    }

    /// The allocation as a reader sees it: the view of converted weights comes from the converted form alone.
    pub(super) fn readable(&mut self, tensor: &Tensor, stages: &Stages) -> Result<&[u8], DeviceError> {
        if self.converted.as_ref().is_some_and(|c| c.restored.is_none()) {
            self.convert(tensor, stages);
        }
        let Some(c) = &mut self.converted else { return Ok(&self.bytes) };
        if c.restored.is_none() {
            let name = format!("{}, restored", tensor.name);
            let image = Guarded::new(&name, Some(self.bytes.len()), 0);
            let mut image = image.map_err(|e| DeviceError(format!("reading a tensor: {e}")))?;
            image.copy_from_slice(&self.bytes);
            let first = tensor.start[0] / tensor.ty.block_len() * tensor.ty.block_bytes();
            image.par_chunks_mut(tensor.parent_row_bytes()).enumerate().for_each(|(row, bytes)| {
                if tensor.view_row(row).is_some() {
                    bytes[first..][..tensor.row_bytes()].fill(0);
                }
            });
            (stages.restore)(Interleaved { scales: &c.scales, codes: &c.codes }, tensor, &mut image);
            c.restored = Some(image);
        }
        Ok(c.restored.as_deref().unwrap_or_default())
    }

    /// Looks at the guards of all its memory.
    pub(super) fn look(&self, guards: &mut Guards) {
        self.bytes.look(guards);
        if let Some(Converted { scales, codes, restored, .. }) = &self.converted {
            scales.look(guards);
            codes.look(guards);
            restored.iter().for_each(|image| image.look(guards));
        }
    }

    /// What a matmul reads.
    pub(super) fn weights<'a>(&'a self, tensor: &'a Tensor) -> Weights<'a> {
        match &self.converted {
            Some(c) => Weights::Interleaved(Interleaved { scales: &c.scales, codes: &c.codes }),
            None => Weights::Rows(View { tensor, bytes: &self.bytes }),
        }
    }
}

/// A buffer for each tensor of a checked plan.
pub(super) fn buffers(plan: &Plan, jobs: &[Job]) -> Result<Vec<Buffer>, LoadError> {
    let interleave = |tensor: usize| {
        let multiplied = jobs.iter().any(|job| matches!(job, Job::MulMatId { weights, .. } if *weights == tensor));
        multiplied && plan.tensors[tensor].ty == ElemType::Mxfp4
    };
    let of_its_own = |(i, tensor): (usize, &Tensor)| match tensor.role {
        Role::View { .. } => Ok(Buffer::none()),
        _ => Buffer::new(tensor, interleave(i)),
    };
    plan.tensors.iter().enumerate().map(of_its_own).collect()
}

/// Slots sorted by expert. Those of one routing serve every matmul that has it.
#[derive(Default)]
pub(super) struct Table {
    /// First tile of each expert, and the number of tiles.
    pub(super) tile_offset: Guarded<u32>,
    /// Expert of each tile.
    pub(super) tile_expert: Guarded<u32>,
    /// Sorted slots.
    pub(super) slots: Guarded<u32>,
}

impl Table {
    /// Allocates for a matmul.
    pub(super) fn new(sizes: &Sizes) -> Result<Self, LoadError> {
        let (tiles, slots) = (sizes.max_tiles(), product(&[sizes.max_tiles(), TILE_SLOTS]));
        Ok(Table {
            tile_offset: Guarded::new("the routing's tile offsets", Some(sizes.experts + 1), INITIAL)?,
            tile_expert: Guarded::new("the routing's tile experts", Some(tiles), INITIAL)?,
            slots: Guarded::new("the routing's slots", slots, INITIAL)?,
        })
    }
}

/// Scratch of the whole plan: each buffer is exactly as large as the most demanding step needs it.
#[derive(Default)]
pub(super) struct Scratch {
    /// Slots of each expert.
    pub(super) counters: Guarded<u32>,
    /// By number of the table.
    pub(super) tables: Vec<Table>,
    /// Activation row of each sorted slot.
    pub(super) rows: Guarded<f32>,
    /// Products of each tile.
    pub(super) products: Guarded<f32>,
    /// Rows being sorted.
    pub(super) keys: Guarded<u64>,
}

impl Scratch {
    /// Allocates for the steps of a plan.
    pub(super) fn new(plan: &Plan, jobs: &[Job], tables: Vec<Table>) -> Result<Self, LoadError> {
        // Counters, rows, products, keys.
        let mut counts = [Some(0); 4];
        for job in jobs {
            let needed = match job {
                Job::MulMatId { single: true, .. } | Job::TopK { .. } | Job::Moves => continue,
                Job::MulMatId { sizes, .. } => {
                    let slots = product(&[sizes.max_tiles(), TILE_SLOTS]);
                    let of_slots = |size| slots.and_then(|slots| product(&[slots, size]));
                    let products = product(&[sizes.panels(), TILE_ROWS]).and_then(of_slots);
                    [Some(sizes.experts), of_slots(sizes.k), products, Some(0)]
                }
                Job::Argsort { x, .. } => {
                    let tensor = &plan.tensors[*x];
                    let rows = tensor.elements() / tensor.shape[0];
                    // A few rows for each thread, so that one slow thread does not hold up all.
                    let workers = rows.min(4 * rayon::current_num_threads());
                    let keys = product(&[workers, tensor.shape[0].next_power_of_two()]);
                    [Some(0), Some(0), Some(0), keys]
                }
            };
            for (count, needed) in counts.iter_mut().zip(needed) {
                *count = count.zip(needed).map(|(a, b)| a.max(b));
            }
        }
        let [counters, rows, products, keys] = counts;
        let number = f32::from_bits(INITIAL);
        Ok(Scratch {
            counters: Guarded::new("the routing's counters", counters, INITIAL)?,
            tables,
            rows: Guarded::new("the sorted activation rows", rows, number)?,
            products: Guarded::new("the products", products, number)?,
            keys: Guarded::new("the rows being sorted", keys, u64::MAX)?,
        })
    }

    /// Looks at the guards of everything.
    pub(super) fn look(&self, guards: &mut Guards) {
        self.counters.look(guards);
        for Table { tile_offset, tile_expert, slots } in &self.tables {
            [tile_offset, tile_expert, slots].into_iter().for_each(|words| words.look(guards));
        }
        self.rows.look(guards);
        self.products.look(guards);
        self.keys.look(guards);
    }

    /// Fills everything with a pattern.
    pub(super) fn poison(&mut self, pattern: u32) {
        self.counters.fill(pattern);
        for Table { tile_offset, tile_expert, slots } in &mut self.tables {
            [tile_offset, tile_expert, slots].into_iter().for_each(|words| words.fill(pattern));
        }
        self.rows.fill(f32::from_bits(pattern));
        self.products.fill(f32::from_bits(pattern));
        self.keys.fill(u64::from(pattern) << 32 | u64::from(pattern));
    }
}
