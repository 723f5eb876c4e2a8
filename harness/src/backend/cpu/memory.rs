//! Memory of a loaded plan: a buffer for each tensor, and scratch that all steps share.

use conform_cases::formats::ElemType;
use conform_cases::plan::{Plan, Role, Tensor};
use rayon::prelude::*;

use super::super::{DeviceError, LoadError};
use super::arguments::{Interleaved, Sizes, TILE_ROWS, TILE_SLOTS, View, Weights};
use super::check::Job;
use super::stages::Stages;

/// Scratch is this until a stage writes it: padding as a slot, NaN as a number, far out of range as a count.
const INITIAL: u32 = u32::MAX;

/// The product of some sizes, or `None` where it cannot be counted.
fn product(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1usize, |all, size| all.checked_mul(*size))
}

/// A vector of exactly `count` values; a refused allocation is an answer, not an abort.
fn filled<T: Copy>(what: &str, count: Option<usize>, value: T) -> Result<Vec<T>, LoadError> {
    let bytes = count.and_then(|count| count.checked_mul(size_of::<T>()));
    let (Some(count), Some(bytes)) = (count, bytes) else {
        return Err(LoadError::Unsupported(format!("{what}: its bytes cannot be counted")));
    };
    let mut all = Vec::new();
    if all.try_reserve_exact(count).is_err() {
        return Err(LoadError::Unsupported(format!("{what} needs {bytes} bytes, allocation refused")));
    }
    all.resize(count, value);
    Ok(all)
}

/// A tensor's allocation, and its converted form if it is mxfp4 weights.
pub(super) struct Buffer {
    /// What was written. The view's part of mxfp4 weights is only ever read by the conversion.
    pub(super) bytes: Vec<u8>,
    converted: Option<Converted>,
}

/// mxfp4 weights in the interleaved layout.
struct Converted {
    scales: Vec<u8>,
    codes: Vec<u32>,
    /// The bytes were written after the last conversion.
    stale: bool,
    /// The allocation as the converted form gives it back: kept from a read until a write or a run.
    restored: Option<Vec<u8>>,
}

impl Buffer {
    /// Allocates a checked tensor; `interleave` says that it will be converted.
    pub(super) fn new(tensor: &Tensor, interleave: bool) -> Result<Self, LoadError> {
        let what = format!("tensor {}", tensor.name);
        let bytes = filled(&what, Some(tensor.parent_bytes()), 0)?;
        let converted = if interleave {
            let blocks = tensor.elements() / tensor.ty.block_len();
            let what = format!("{what}, converted,");
            let (scales, codes) = (filled(&what, Some(blocks), 0)?, filled(&what, product(&[4, blocks]), 0)?);
            Some(Converted { scales, codes, stale: true, restored: None })
        } else {
            None
        };
        Ok(Buffer { bytes, converted })
    }

    /// What a view has.
    fn none() -> Self {
        Buffer { bytes: Vec::new(), converted: None }
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
                self.bytes = restored;
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
            let mut image = Vec::new();
            if image.try_reserve_exact(self.bytes.len()).is_err() {
                let (name, size) = (&tensor.name, self.bytes.len());
                return Err(DeviceError(format!("reading tensor {name} needs {size} bytes, allocation refused")));
            }
            image.extend_from_slice(&self.bytes);
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
    pub(super) tile_offset: Vec<u32>,
    /// Expert of each tile.
    pub(super) tile_expert: Vec<u32>,
    /// Sorted slots.
    pub(super) slots: Vec<u32>,
}

impl Table {
    /// Allocates for a matmul.
    pub(super) fn new(sizes: &Sizes) -> Result<Self, LoadError> {
        let (tiles, slots) = (sizes.max_tiles(), product(&[sizes.max_tiles(), TILE_SLOTS]));
        Ok(Table {
            tile_offset: filled("the routing's tile offsets", Some(sizes.experts + 1), INITIAL)?,
            tile_expert: filled("the routing's tile experts", Some(tiles), INITIAL)?,
            slots: filled("the routing's slots", slots, INITIAL)?,
        })
    }
}

/// Scratch of the whole plan: each buffer is exactly as large as the most demanding step needs it.
#[derive(Default)]
pub(super) struct Scratch {
    /// Slots of each expert.
    pub(super) counters: Vec<u32>,
    /// By number of the table.
    pub(super) tables: Vec<Table>,
    /// Activation row of each sorted slot.
    pub(super) rows: Vec<f32>,
    /// Products of each tile.
    pub(super) products: Vec<f32>,
    /// Rows being sorted.
    pub(super) keys: Vec<u64>,
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
            counters: filled("the routing's counters", counters, INITIAL)?,
            tables,
            rows: filled("the sorted activation rows", rows, number)?,
            products: filled("the products", products, number)?,
            keys: filled("the rows being sorted", keys, u64::MAX)?,
        })
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
