//! The engine doing the operations of a case, as steps of a plan.
//!
//! Nothing that the engine decides depends on the bytes of rows, so it runs
//! where the plan is made: what it asks of a device becomes a step. What it
//! says of sizes and of blobs that it refuses is looked at here too.

use super::checkpoint::Ring;
use super::host::{Host, Saved};
use super::io::{StateError, Transfers};
use super::memory::{Memory, What};
use super::ops::{Op, Script, apply, rows};
use super::shape::Shape;
use super::stages::Stages;
use super::tensor::{CacheTensor, runs};
use crate::op::Program;
use crate::plan::{Buffer, Part, Place, Role, Step, Tensor};

/// A save, as the engine made it.
#[derive(Clone, Debug)]
pub struct EngineSave {
    /// The operation that it was.
    pub op: usize,
    /// The buffer that its rows lie in; none where it has none.
    pub buffer: Option<usize>,
    /// The blob, with zeros for rows.
    pub blob: Vec<u8>,
    /// Where rows go.
    pub parts: Vec<Part>,
    /// What came right before it.
    pub after: After,
}

/// What a save follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum After {
    /// Nothing of interest.
    #[default]
    Anything,
    /// Work that was queued and not waited for.
    Queued,
    /// A whole state loaded over garbage.
    Restored,
}

/// Something that is wrong, whatever the device does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The check that it fails.
    pub check: &'static str,
    /// One line.
    pub what: String,
}

/// What became of a script.
#[derive(Debug)]
pub struct Lowered {
    /// The plan's parts.
    pub program: Program,
    /// The saves of the engine.
    pub saves: Vec<EngineSave>,
    /// What it did wrong.
    pub faults: Vec<Fault>,
    /// The memory as the engine has it in the end.
    pub memory: Memory,
    /// The memory as the oracle has it in the end.
    pub host: Host,
    /// The saves as the oracle has them.
    pub saved: Vec<Saved>,
    /// Bytes of buffers that are given.
    pub given: Vec<(usize, Vec<u8>)>,
}

/// Turns what the engine asks of a device into steps.
#[derive(Default)]
struct Recorder {
    buffers: Vec<Buffer>,
    steps: Vec<Step>,
    /// The buffer that an upload reads from.
    source: Option<usize>,
    /// Parts and buffer of the last fetch.
    fetched: Option<(Vec<Part>, usize)>,
    /// Bytes of each tensor.
    sizes: Vec<usize>,
}

impl Recorder {
    /// A device would have to refuse what does not lie in its tensors, or in the blob.
    fn check(&self, blob: usize, parts: &[Part]) -> Result<(), String> {
        match parts.iter().find(|p| !p.fits(self.sizes[p.tensor], blob)) {
            Some(part) => Err(format!(
                "{part:?} does not lie in a tensor of {} bytes and a blob of {blob}",
                self.sizes[part.tensor]
            )),
            None => Ok(()),
        }
    }
}

impl Transfers for Recorder {
    fn fetch(&mut self, blob: &mut [u8], parts: &[Part]) -> Result<(), String> {
        if parts.is_empty() {
            return Ok(());
        }
        self.check(blob.len(), parts)?;
        let to = self.buffers.len();
        let saves = self.buffers.iter().filter(|b| !b.is_given).count();
        self.buffers.push(Buffer { name: format!("save_{saves}"), bytes: blob.len(), is_given: false });
        self.steps.push(Step::Fetch { to, parts: parts.to_vec() });
        self.fetched = Some((parts.to_vec(), to));
        Ok(())
    }

    fn upload(&mut self, blob: &[u8], parts: &[Part]) -> Result<(), String> {
        self.check(blob.len(), parts)?;
        if let (Some(from), false) = (self.source, parts.is_empty()) {
            self.steps.push(Step::Upload { from, parts: parts.to_vec() });
        }
        Ok(())
    }
}

/// The tensors of a memory, then one of new rows for each of them.
fn tensors(cache: &[CacheTensor], rows: usize) -> Vec<Tensor> {
    let new = |t: &CacheTensor| {
        let name = format!("new_{}", t.name.replace(' ', "_"));
        Tensor::whole(&name, t.ty, [t.embd, rows.max(1), 1, 1], Role::Input)
    };
    cache.iter().map(CacheTensor::tensor).chain(cache.iter().map(new)).collect()
}

/// Runs the engine with these stages through a script.
pub fn lower(shape: &Shape, script: &Script, ring: usize, seed: u64, stages: Stages) -> Lowered {
    let mut lowering = Lowering {
        shape,
        seed,
        cache: shape.tensors(),
        memory: Memory::new(shape, stages),
        ring: Ring::new(ring.max(1)),
        device: Recorder {
            sizes: shape.tensors().iter().map(|t| t.streams * t.stream_bytes()).collect(),
            ..Recorder::default()
        },
        host: Host::new(shape),
        saved: Vec::new(),
        saves: Vec::new(),
        given: Vec::new(),
        faults: Vec::new(),
        after: After::Anything,
    };
    for (i, op) in script.ops.iter().enumerate() {
        lowering.host_op(op);
        if let Err(fault) = lowering.engine_op(i, op) {
            // What follows would be judged by what should have happened here.
            lowering.faults.push(fault);
            break;
        }
    }
    let Lowering { cache, memory, device, host, saved, saves, given, faults, .. } = lowering;
    let program = Program {
        tensors: tensors(&cache, script.rows),
        buffers: device.buffers,
        steps: device.steps,
        ..Program::default()
    };
    Lowered { program, saves, faults, memory, host, saved, given }
}

struct Lowering<'a> {
    shape: &'a Shape,
    seed: u64,
    cache: Vec<CacheTensor>,
    memory: Memory,
    ring: Ring,
    device: Recorder,
    host: Host,
    saved: Vec<Saved>,
    saves: Vec<EngineSave>,
    given: Vec<(usize, Vec<u8>)>,
    faults: Vec<Fault>,
    after: After,
}

impl Lowering<'_> {
    fn host_op(&mut self, op: &Op) {
        let (cache, seed) = (&self.cache, self.seed);
        if let Some(Some(saved)) = apply(&mut self.host, op, &self.saved, |row| rows(cache, seed, row)) {
            self.saved.push(saved);
        }
    }

    fn engine_op(&mut self, i: usize, op: &Op) -> Result<(), Fault> {
        let failed = |check| move |e: StateError| Fault { check, what: format!("operation {i}: {e}") };
        let after = match (op, self.after) {
            (Op::Garbage(_) | Op::Load { what: What::All, .. }, After::Restored) => After::Restored,
            _ => After::Anything,
        };
        let before = std::mem::replace(&mut self.after, after);
        match op {
            Op::Append { sequence, cells, first } => self.append(*sequence, cells, *first).map_err(failed("placement")),
            Op::Remove { sequence, from, to } => {
                if let Some(attention) = &mut self.memory.attention {
                    attention.remove(*sequence, *from, *to);
                }
                if let Some(recurrent) = &mut self.memory.recurrent {
                    recurrent.remove(*sequence);
                }
                Ok(())
            }
            Op::Shift { sequence, from, to, by } => {
                if let Some(attention) = &mut self.memory.attention {
                    attention.shift(*sequence, *from, *to, *by);
                }
                if let Some(recurrent) = &mut self.memory.recurrent {
                    recurrent.shift(*sequence, *by);
                }
                Ok(())
            }
            Op::Copy { from, to, fork } => self.copy(*from, *to, *fork).map_err(failed("placement")),
            Op::Save { what, partial, checkpoint } => self.save(i, *what, *partial, *checkpoint, before),
            Op::Load { save, what, partial, flip } => {
                let checkpoint = self.ring.find(*save).map(|c| c.blob.clone());
                let kept = checkpoint.or_else(|| self.saves.get(*save).map(|s| s.blob.clone())).unwrap_or_default();
                let blob = match flip {
                    Some(at) => self.give(*save, *at),
                    None => kept,
                };
                if flip.is_none() {
                    self.device.source = self.saves.get(*save).and_then(|s| s.buffer);
                }
                self.memory.load(*what, *partial, &blob, &mut self.device).map_err(failed("mismatch"))
            }
            Op::Garbage(byte) => {
                let fill = |t: &CacheTensor| Step::Fill { tensor: t.index, byte: *byte };
                self.device.steps.extend(self.cache.iter().map(fill));
                self.after = After::Restored;
                Ok(())
            }
        }
    }

    /// The blob that another device would have saved, with one byte of a row changed.
    fn give(&mut self, save: usize, flip: usize) -> Vec<u8> {
        let mut saved = self.saved[save].clone();
        saved.flip(flip);
        let blob = saved.blob(self.shape).bytes;
        let buffer = self.device.buffers.len();
        self.device.buffers.push(Buffer {
            name: format!("given_{}", self.given.len()),
            bytes: blob.len(),
            is_given: true,
        });
        self.given.push((buffer, blob.clone()));
        self.device.source = Some(buffer);
        blob
    }

    fn append(&mut self, sequence: i32, cells: &[super::attention::Cell], first: usize) -> Result<(), StateError> {
        let last = first + cells.len() - 1;
        let pos = cells.last().map_or(0, |c| c.pos);
        if let Some(attention) = &mut self.memory.attention {
            let (stream, places) = attention.append(sequence, cells)?;
            let tensors = attention.tensors.clone();
            tensors.iter().for_each(|t| self.write_rows(t, stream, &places, first));
        }
        if let Some(recurrent) = &mut self.memory.recurrent {
            let tensors = recurrent.tensors.clone();
            for (target, source) in recurrent.due() {
                let copy = |t: &CacheTensor| copy_cells(t, (0, &[source]), (0, &[target]));
                self.device.steps.extend(tensors.iter().map(copy));
            }
            let cell = recurrent.advance(sequence, pos)?;
            tensors.iter().for_each(|t| self.write_rows(t, 0, &[cell], last));
        }
        self.after = After::Queued;
        Ok(())
    }

    /// Copies new rows to cells.
    fn write_rows(&mut self, t: &CacheTensor, stream: usize, cells: &[usize], first: usize) {
        let mut parts = Vec::new();
        let mut row = first;
        for run in runs(cells) {
            // New rows lie one after the other; a transposed cell takes its elements one by one.
            let pieces = if t.transposed { run.clone().map(|c| c..c + 1).collect() } else { vec![run.clone()] };
            for cells in pieces {
                let n = cells.len();
                parts.push(t.part(stream, cells, row * t.row_bytes(), t.element_bytes()));
                row += n;
            }
        }
        self.device.steps.push(Step::Copy { from: self.cache.len() + t.index, parts });
    }

    fn copy(&mut self, from: i32, to: i32, fork: bool) -> Result<(), StateError> {
        if let Some(attention) = &mut self.memory.attention
            && let Some(((source, cells), (target, places))) = attention.copy(from, to)?
        {
            let copy = |t: &CacheTensor| copy_cells(t, (source, &cells), (target, &places));
            let steps: Vec<Step> = attention.tensors.iter().map(copy).collect();
            self.device.steps.extend(steps.into_iter().filter(|s| !s.tensors().is_empty()));
            self.after = After::Queued;
        }
        if let Some(recurrent) = &mut self.memory.recurrent {
            if fork { recurrent.fork(from, to)? } else { recurrent.share(from, to) }
        }
        Ok(())
    }

    fn save(&mut self, op: usize, what: What, partial: bool, checkpoint: bool, after: After) -> Result<(), Fault> {
        let number = self.saves.len();
        let fault = |check, what: String| Fault { check, what: format!("operation {op}: {what}") };
        self.device.fetched = None;
        let blob = if checkpoint {
            let update = self.ring.update(number, &self.memory, what, partial, &mut self.device);
            update.map(|()| self.ring.find(number).map(|c| c.blob.clone()).unwrap_or_default())
        } else {
            self.memory.save(what, partial, Vec::new(), &mut self.device)
        };
        let blob = blob.map_err(|e| fault("size", e.to_string()))?;
        let (parts, buffer) = self.device.fetched.take().unzip();
        let (parts, saved) = (parts.unwrap_or_default(), &self.saved[number]);
        let want = saved.blob(self.shape).bytes.len();
        if blob.len() != want {
            let what = format!("save {number} has {} bytes, {want} are the state", blob.len());
            self.faults.push(fault("size", what));
        }
        let (pieces, most) = (parts.iter().map(|p| p.count).sum::<usize>(), self.most_pieces(saved, what));
        if pieces > most {
            self.faults.push(fault("transfers", format!("save {number} takes {pieces} transfers, {most} suffice")));
        }
        self.saves.push(EngineSave { op, buffer, blob, parts, after });
        Ok(())
    }

    /// Transfers that suffice: one for each run of neighbouring cells, and in a transposed tensor one for each run and
    /// row.
    fn most_pieces(&self, saved: &Saved, what: What) -> usize {
        let kv = self.shape.kv.map_or(0, |s| 2 * s.layers);
        let runs_of = |tensor: usize| self.host.runs(tensor, what);
        let (streams, states) = saved.counts();
        let has_kv = streams.iter().any(|n| *n > 0);
        let pieces = |t: &CacheTensor| {
            let is_saved = if t.index < kv { has_kv } else { states > 0 };
            let runs = if is_saved { runs_of(t.index) } else { 0 };
            if t.transposed { runs * t.embd } else { runs }
        };
        self.cache.iter().map(pieces).sum()
    }
}

/// Copies the rows of cells of a tensor to others of its own.
fn copy_cells(t: &CacheTensor, (source, from): (usize, &[usize]), (target, to): (usize, &[usize])) -> Step {
    let parts = from.iter().zip(to).map(|(from, to)| {
        let source = t.part(source, *from..*from + 1, 0, 0).here;
        let part = t.part(target, *to..*to + 1, 0, 0);
        Part { there: Place { at: source.at, stride: source.stride }, ..part }
    });
    Step::Copy { from: t.index, parts: parts.collect() }
}
