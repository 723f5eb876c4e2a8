//! The embedded backend: the whole expert-matmul pipeline in safe Rust, on all threads.
//!
//! It does what a GPU backend does, in the same stages (convert, route, gather,
//! tiled gemm or single-token gemv, sort, select), so that a machine without a GPU tests
//! real code and not the reference against itself. Stages are functions in a
//! [table](Stages), and results do not depend on threads or processor.

mod argsort;
pub mod arguments;
mod check;
mod convert;
mod decode;
mod decode_k;
mod gemm;
mod gemv;
mod guarded;
mod memory;
mod moves;
mod order;
mod reorder;
mod route;
pub mod stages;
#[cfg(test)]
mod tests;
mod tile;
mod top_k;

use std::collections::BTreeMap;
use std::ops::Range;

use conform_cases::plan::{Part, Plan};

use self::arguments::{Ids, Sizes, TILE_ROWS, TILE_SLOTS, Tiles, View, Weights};
use self::check::Job;
use self::memory::{Buffer, Scratch, Table};
pub use self::stages::Stages;
use super::routing::{Reuse, Tables};
use super::{Capabilities, Device, DeviceError, DeviceInfo, Driver, Guards, LoadError, Probe};
use crate::identity::{Claims, Kind};
use crate::mutants::Edits;

/// Name of the backend and key of its only device.
const KEY: &str = "cpu";

/// The driver of the embedded device.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuDriver;

impl Driver for CpuDriver {
    fn name(&self) -> &'static str {
        KEY
    }

    fn probe(&self) -> Probe {
        Probe::Found(vec![describe()])
    }

    fn open(&self, key: &str) -> Result<Box<dyn Device>, DeviceError> {
        match key {
            KEY => Ok(Box::new(CpuDevice::new(Stages::default()))),
            _ => Err(DeviceError(format!("open {key}: the only device is {KEY}"))),
        }
    }

    fn open_mutant(&self, key: &str, edits: &Edits) -> Result<Box<dyn Device>, DeviceError> {
        let swap = edits.rust.ok_or_else(|| DeviceError("it swaps no stage".to_owned()))?;
        match key {
            KEY => Ok(Box::new(CpuDevice::new(swap(Stages::default())))),
            _ => self.open(key),
        }
    }

    fn open_reusing(&self, key: &str, reuse: Reuse) -> Result<Box<dyn Device>, DeviceError> {
        match key {
            KEY => Ok(Box::new(CpuDevice::new(Stages::default()).with_reuse(reuse))),
            _ => self.open(key),
        }
    }
}

fn describe() -> DeviceInfo {
    let threads = rayon::current_num_threads().to_string();
    let simd = format!("{:?}", pulp::Arch::new());
    // `V3(V3)`: the level and the proof that it is there.
    let simd = simd.split('(').next().unwrap_or_default().to_lowercase();
    DeviceInfo {
        key: KEY.to_owned(),
        backend: KEY.to_owned(),
        name: "embedded reference pipeline".to_owned(),
        driver: format!("conform {}", env!("CARGO_PKG_VERSION")),
        identity: Claims::new(KEY, 0, Kind::Cpu),
        properties: BTreeMap::from([("threads".to_owned(), threads), ("simd".to_owned(), simd)]),
        capabilities: Capabilities { guards: true, ..Capabilities::OWN },
    }
}

/// The embedded device, with any table of stages.
pub struct CpuDevice {
    info: DeviceInfo,
    stages: Stages,
    reuse: Reuse,
    loaded: Option<Loaded>,
}

/// A plan and its memory.
struct Loaded {
    plan: Plan,
    jobs: Vec<Job>,
    buffers: Vec<Buffer>,
    scratch: Scratch,
    tables: Tables,
}

impl CpuDevice {
    /// A device that runs these stages.
    pub fn new(stages: Stages) -> Self {
        CpuDevice { info: describe(), stages, reuse: Reuse::default(), loaded: None }
    }

    /// The same with another rule of when sorted slots are used again.
    #[must_use]
    pub fn with_reuse(self, reuse: Reuse) -> Self {
        CpuDevice { reuse, ..self }
    }

    fn loaded(&mut self, call: &str) -> Result<&mut Loaded, DeviceError> {
        self.loaded.as_mut().ok_or_else(|| DeviceError(format!("{call}: no plan is loaded")))
    }
}

impl Device for CpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&mut self, plan: &Plan) -> Result<(), LoadError> {
        self.free();
        let mut jobs = check::jobs(plan)?;
        let buffers = memory::buffers(plan, &jobs)?;
        let mut tables = Tables::new(plan, self.reuse);
        let mut slots = Vec::new();
        for job in &mut jobs {
            let Job::MulMatId { ids, sizes, table, single: false, .. } = job else { continue };
            let (number, is_new) = tables.table(plan, *ids, sizes.experts);
            *table = number;
            if is_new {
                slots.push(Table::new(sizes)?);
            }
        }
        let scratch = Scratch::new(plan, &jobs, slots)?;
        self.loaded = Some(Loaded { plan: plan.clone(), jobs, buffers, scratch, tables });
        Ok(())
    }

    fn write(&mut self, tensor: usize, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let loaded = self.loaded("write")?;
        let (_, buffer) = loaded.tensor("write", tensor, offset, bytes.len())?;
        buffer.write(offset..offset + bytes.len(), bytes);
        loaded.tables.written(tensor);
        Ok(())
    }

    fn read(&mut self, tensor: usize, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let stages = self.stages;
        let loaded = self.loaded("read")?;
        let (plan, buffer) = loaded.tensor("read", tensor, offset, bytes.len())?;
        let readable = buffer.readable(&plan.tensors[tensor], &stages)?;
        bytes.copy_from_slice(&readable[offset..offset + bytes.len()]);
        Ok(())
    }

    fn copy(&mut self, from: usize, parts: &[Part]) -> Result<(), DeviceError> {
        let stages = self.stages;
        let loaded = self.loaded("copy")?;
        let source = loaded.buffers.get(from).map(|b| b.bytes.len());
        let source = source.ok_or_else(|| DeviceError(format!("copy: the plan has no tensor {from}")))?;
        loaded.check("copy", parts, source)?;
        loaded.tables.parts_written(parts);
        loaded.copy(from, parts, &stages)
    }

    fn upload(&mut self, from: &[u8], parts: &[Part]) -> Result<(), DeviceError> {
        let loaded = self.loaded("upload")?;
        loaded.check("upload", parts, from.len())?;
        loaded.tables.parts_written(parts);
        loaded.upload(from, parts);
        Ok(())
    }

    fn fetch(&mut self, to: &mut [u8], parts: &[Part]) -> Result<(), DeviceError> {
        let stages = self.stages;
        let loaded = self.loaded("fetch")?;
        loaded.check("fetch", parts, to.len())?;
        loaded.fetch(to, parts, &stages)
    }

    fn poison_scratch(&mut self, pattern: u32) -> Result<(), DeviceError> {
        let loaded = self.loaded("poison_scratch")?;
        loaded.tables.forget();
        loaded.scratch.poison(pattern);
        Ok(())
    }

    fn run(&mut self, steps: Range<usize>) -> Result<(), DeviceError> {
        let stages = self.stages;
        let loaded = self.loaded("run")?;
        let Some(jobs) = loaded.jobs.get(steps.clone()).map(<[Job]>::to_vec) else {
            return Err(DeviceError(format!("run: steps {steps:?} of {}", loaded.jobs.len())));
        };
        for (buffer, tensor) in loaded.buffers.iter_mut().zip(&loaded.plan.tensors) {
            buffer.convert(tensor, &stages);
        }
        jobs.into_iter().try_for_each(|job| loaded.run(job, &stages))
    }

    fn free(&mut self) {
        self.loaded = None;
    }

    fn guards(&mut self) -> Result<Option<Guards>, DeviceError> {
        let loaded = self.loaded("guards")?;
        let mut guards = Guards::default();
        loaded.buffers.iter().for_each(|buffer| buffer.look(&mut guards));
        loaded.scratch.look(&mut guards);
        Ok(Some(guards))
    }

    fn sorts(&self) -> Option<u64> {
        self.loaded.as_ref().map(|loaded| loaded.tables.sorts())
    }
}

impl Loaded {
    /// The plan and the buffer of a tensor in which `len` bytes at `offset` exist.
    fn tensor(
        &mut self,
        call: &str,
        tensor: usize,
        offset: usize,
        len: usize,
    ) -> Result<(&Plan, &mut Buffer), DeviceError> {
        let count = self.plan.tensors.len();
        let (Some(described), Some(buffer)) = (self.plan.tensors.get(tensor), self.buffers.get_mut(tensor)) else {
            return Err(DeviceError(format!("{call}: tensor {tensor} of {count}")));
        };
        let size = buffer.bytes.len();
        if offset.checked_add(len).is_none_or(|end| end > size) {
            let name = &described.name;
            return Err(DeviceError(format!("{call}: {len} bytes at {offset} exceed tensor {name} of {size} bytes")));
        }
        Ok((&self.plan, buffer))
    }

    fn view(&self, tensor: usize) -> View<'_> {
        View { tensor: &self.plan.tensors[tensor], bytes: &self.buffers[self.plan.allocation(tensor)].bytes }
    }

    /// Runs one job. Its output leaves the buffers meanwhile; no input is the output, which was checked.
    fn run(&mut self, job: Job, stages: &Stages) -> Result<(), DeviceError> {
        let Some(out) = job.out() else { return Ok(()) };
        let mut bytes = std::mem::take(&mut self.buffers[out].bytes);
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = self.route(job, stages, &mut scratch);
        let result = result.and_then(|()| {
            let (whole, own) = bytes.whole();
            self.run_into(job, stages, &mut scratch, (stages.place)(whole, own))
        });
        self.scratch = scratch;
        self.buffers[out].bytes = bytes;
        self.tables.written(out);
        result
    }

    /// Sorts the slots of a job that needs them sorted, unless they are.
    fn route(&mut self, job: Job, stages: &Stages, scratch: &mut Scratch) -> Result<(), DeviceError> {
        let Job::MulMatId { ids, sizes, table, single: false, .. } = job else { return Ok(()) };
        if !self.tables.is_good(table) {
            let Scratch { counters, tables, .. } = scratch;
            route(Ids { view: self.view(ids), sizes }, stages, counters, &mut tables[table])?;
            self.tables.made(table);
        }
        Ok(())
    }

    fn run_into(&self, job: Job, stages: &Stages, scratch: &mut Scratch, out: &mut [u8]) -> Result<(), DeviceError> {
        match job {
            Job::Argsort { x, order, .. } => {
                let x = self.view(x);
                let padded = x.tensor.shape[0].next_power_of_two();
                let rows = x.tensor.elements() / x.tensor.shape[0];
                let workers = rows.min(scratch.keys.len() / padded);
                (stages.argsort)(x, order, &mut scratch.keys[..workers * padded], out);
                Ok(())
            }
            Job::Moves => Ok(()),
            Job::TopK { x, k, .. } => {
                (stages.top_k)(self.view(x), k, out);
                Ok(())
            }
            Job::MulMatId { weights, x, ids, sizes, table, single, .. } => {
                let ids = Ids { view: self.view(ids), sizes };
                let weights = self.buffers[weights].weights(&self.plan.tensors[weights]);
                match weights {
                    Weights::Interleaved(weights) if single => {
                        (stages.gemv)(ids, self.view(x), weights, out);
                        Ok(())
                    }
                    _ => {
                        mul_mat_id(ids, self.view(x), weights, stages, (table, scratch), out);
                        Ok(())
                    }
                }
            }
        }
    }
}

/// Sorts slots by expert into a table.
fn route(ids: Ids<'_>, stages: &Stages, counters: &mut [u32], table: &mut Table) -> Result<(), DeviceError> {
    let sizes: Sizes = ids.sizes;
    let counters = &mut counters[..sizes.experts];
    let tile_offset = &mut table.tile_offset[..=sizes.experts];
    (stages.histogram)(ids, counters);
    (stages.scan)(counters, tile_offset);

    let (tiles, most) = (tile_offset[sizes.experts] as usize, sizes.max_tiles());
    if tiles > most {
        return Err(DeviceError(format!("routing {} slots took {tiles} tiles, {most} suffice", sizes.slots())));
    }
    let slots = &mut table.slots[..tiles * TILE_SLOTS];
    (stages.fill)(slots);
    (stages.scatter)(ids, tile_offset, counters, slots, &mut table.tile_expert[..tiles]);
    Ok(())
}

/// Reorder, gemm, store.
fn mul_mat_id(
    ids: Ids<'_>,
    x: View<'_>,
    weights: Weights<'_>,
    stages: &Stages,
    (table, scratch): (usize, &mut Scratch),
    out: &mut [u8],
) {
    let sizes: Sizes = ids.sizes;
    let Scratch { tables, rows, products, .. } = scratch;
    let Table { tile_offset, tile_expert, slots } = &tables[table];
    let tiles = tile_offset[sizes.experts] as usize;
    let (slots, tile_expert) = (&slots[..tiles * TILE_SLOTS], &tile_expert[..tiles]);

    let rows = &mut rows[..tiles * TILE_SLOTS * sizes.k];
    (stages.reorder)(slots, x, sizes, rows);
    let products = &mut products[..tiles * TILE_SLOTS * sizes.panels() * TILE_ROWS];
    (stages.gemm)(Tiles { experts: tile_expert, slots }, weights, rows, sizes, products);
    (stages.store)(slots, products, sizes, out);
}
