//! One request to run, executed: the steps that the [protocol](super::protocol) prescribes.

use std::time::Instant;

use conform_cases::formats::ElemType;
use conform_cases::judge::Guards;
use conform_cases::plan::{Layout, Plan, Step};
use memmap2::{Mmap, MmapMut};

use super::protocol::{Outcome, Run, Stage, Times};
use super::shared;
use crate::backend::{Device, DeviceError, LoadError};

/// The steps that the [protocol](super::protocol) prescribes for a run, and what became of guard bytes.
pub(super) fn execute(
    device: &mut dyn Device,
    run: &Run,
    inputs: &Mmap,
    results: &mut MmapMut,
    times: &mut Times,
) -> Result<Option<Guards>, Outcome> {
    let (plan, layout) = (&run.plan, &run.layout);
    let not_loaded = |e| match e {
        LoadError::Unsupported(why) => Outcome::Unsupported { why },
        LoadError::Device(e) => failed(Stage::Load, e),
    };
    if let [Step::Llama { model, log, calls }] = &plan.steps[..] {
        let model = layout.given[*model].map_or(&[][..], |at| &inputs[at..at + plan.buffers[*model].bytes]);
        for places in &layout.left {
            let Some(at) = places[*log] else { continue };
            let log = &mut results[at..at + plan.buffers[*log].bytes];
            timed(&mut times.compute, || device.llama(model, calls, log)).map_err(|e| match e {
                LoadError::Unsupported(why) => Outcome::Unsupported { why },
                LoadError::Device(e) => failed(Stage::Run, e),
            })?;
        }
        return Ok(None);
    }
    timed(&mut times.load, || decode_inputs(device, plan, layout, inputs, results)).map_err(not_loaded)?;
    timed(&mut times.load, || device.load(plan)).map_err(not_loaded)?;
    let outputs = || plan.tensors.iter().enumerate().filter(|(_, t)| t.is_output());
    timed(&mut times.upload, || {
        for (i, tensor) in plan.tensors.iter().enumerate().filter(|(_, t)| t.is_input()) {
            if let Some(at) = layout.source[i] {
                device.write(i, 0, &inputs[at..at + tensor.parent_bytes()])?;
            }
        }
        Ok(())
    })
    .map_err(|e| failed(Stage::Write, e))?;
    for (r, (poison, places)) in run.poisons.iter().zip(&layout.results).enumerate() {
        timed(&mut times.upload, || {
            for (i, tensor) in outputs() {
                let mut bytes = vec![0; tensor.parent_bytes()];
                shared::fill_words(&mut bytes, *poison);
                device.write(i, 0, &bytes)?;
            }
            device.poison_scratch(*poison)
        })
        .map_err(|e| failed(Stage::Write, e))?;
        let one_by_one = run.one_by_one == Some(r);
        Steps { device, plan, layout, run: r, one_by_one, poison: *poison, inputs, results, times }.run()?;
        timed(&mut times.read, || {
            for (i, tensor) in outputs() {
                if let Some(at) = places[i] {
                    device.read(i, 0, &mut results[at..at + tensor.parent_bytes()])?;
                }
            }
            Ok(())
        })
        .map_err(|e| failed(Stage::Read, e))?;
    }
    // Before anything is read back that would have to be restored: only what ran is to be seen.
    let guards = timed(&mut times.read, || device.guards()).map_err(|e| failed(Stage::Read, e))?;
    if !device.info().capabilities.readable_inputs {
        return Ok(guards);
    }
    timed(&mut times.read, || {
        for (i, tensor) in plan.tensors.iter().enumerate() {
            if let Some(at) = layout.readback[i] {
                device.read(i, 0, &mut results[at..at + tensor.parent_bytes()])?;
            }
        }
        Ok(())
    })
    .map_err(|e| failed(Stage::Read, e))?;
    Ok(guards)
}

/// What host memory holds once it was freed.
pub(crate) const FREED: u8 = 0xa5;

/// The steps of one run.
struct Steps<'a> {
    device: &'a mut dyn Device,
    plan: &'a Plan,
    layout: &'a Layout,
    run: usize,
    /// No two operations are one piece of work.
    one_by_one: bool,
    poison: u32,
    inputs: &'a [u8],
    results: &'a mut [u8],
    times: &'a mut Times,
}

impl Steps<'_> {
    /// Operations that follow each other are one piece of work for the device; bytes are moved one step at a time.
    fn run(mut self) -> Result<(), Outcome> {
        let steps = &self.plan.steps;
        let mut at = 0;
        while at < steps.len() {
            if steps[at].moves_bytes() {
                self.move_bytes(&steps[at])?;
                at += 1;
                continue;
            }
            let end = match self.one_by_one {
                true => at + 1,
                false => steps[at..].iter().position(Step::moves_bytes).map_or(steps.len(), |n| at + n),
            };
            let device = &mut *self.device;
            timed(&mut self.times.compute, || device.run(at..end)).map_err(|e| failed(Stage::Run, e))?;
            at = end;
        }
        Ok(())
    }

    fn move_bytes(&mut self, step: &Step) -> Result<(), Outcome> {
        let device = &mut *self.device;
        match step {
            Step::Copy { from, parts } => {
                timed(&mut self.times.compute, || device.copy(*from, parts)).map_err(|e| failed(Stage::Run, e))
            }
            Step::Upload { from, parts } => {
                // A device that keeps the address beyond the call finds something else there.
                let mut bytes = self.buffer(*from).to_vec();
                let device = &mut *self.device;
                let done = timed(&mut self.times.upload, || device.upload(&bytes, parts));
                bytes.fill(FREED);
                std::hint::black_box(&bytes);
                done.map_err(|e| failed(Stage::Write, e))
            }
            Step::Fetch { to, parts } => {
                let mut bytes = vec![0; self.plan.buffers[*to].bytes];
                shared::fill_words(&mut bytes, self.poison);
                timed(&mut self.times.read, || device.fetch(&mut bytes, parts)).map_err(|e| failed(Stage::Read, e))?;
                if let Some(at) = self.layout.left[self.run][*to] {
                    self.results[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                Ok(())
            }
            Step::Fill { tensor, byte } => {
                let bytes = vec![*byte; self.plan.tensors[*tensor].parent_bytes()];
                timed(&mut self.times.upload, || device.write(*tensor, 0, &bytes)).map_err(|e| failed(Stage::Write, e))
            }
            _ => Ok(()),
        }
    }

    /// Host memory as it is now: given, or what a step of this run left there.
    fn buffer(&self, buffer: usize) -> &[u8] {
        let bytes = self.plan.buffers[buffer].bytes;
        match (self.layout.given[buffer], self.layout.left[self.run][buffer]) {
            (Some(at), _) => &self.inputs[at..at + bytes],
            (None, Some(at)) => &self.results[at..at + bytes],
            (None, None) => &[],
        }
    }
}

/// Values decoded in one call where rows lie one after the other.
const DECODED_AT_ONCE: usize = 1 << 16;

/// Leaves the numbers of those inputs behind that the parent cannot decode.
fn decode_inputs(
    device: &dyn Device,
    plan: &Plan,
    layout: &Layout,
    inputs: &[u8],
    results: &mut [u8],
) -> Result<(), LoadError> {
    for (i, t) in plan.tensors.iter().enumerate() {
        let (Some(source), Some(to)) = (layout.source[i], layout.decoded[i]) else { continue };
        let stored = &inputs[source..source + t.parent_bytes()];
        let numbers = &mut results[to..to + 4 * t.elements()];
        if t.is_contiguous() {
            let rows = (DECODED_AT_ONCE / t.shape[0]).max(1);
            let parts = stored.chunks(rows * t.row_bytes()).zip(numbers.chunks_mut(rows * 4 * t.shape[0]));
            for (blocks, to) in parts {
                decode_part(device, t.ty, blocks, to)?;
            }
            continue;
        }
        let rows = (0..t.parent_rows()).filter_map(|r| t.view_row(r));
        for (at, to) in rows.zip(numbers.chunks_exact_mut(4 * t.shape[0])) {
            decode_part(device, t.ty, &stored[t.row_range(at)], to)?;
        }
    }
    Ok(())
}

fn decode_part(device: &dyn Device, ty: ElemType, blocks: &[u8], to: &mut [u8]) -> Result<(), LoadError> {
    let mut values = vec![0.0f32; to.len() / 4];
    device.decode(ty, blocks, &mut values)?;
    for (bytes, value) in to.chunks_exact_mut(4).zip(&values) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
    Ok(())
}

fn failed(stage: Stage, DeviceError(why): DeviceError) -> Outcome {
    Outcome::Failed { stage, why }
}

/// Adds the time that `work` takes to a counter of microseconds.
fn timed<T>(counter: &mut u64, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    *counter += u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    result
}
