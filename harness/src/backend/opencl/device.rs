//! The OpenCL device: one plan's memory and steps.

use std::collections::BTreeSet;
use std::ops::Range;

use conform_cases::formats::ElemType;
use conform_cases::plan::{Part, Plan, Role, Step};

use super::Found;
use super::argsort::Argsort;
use super::memory::Memory;
use super::mul_mat_id::{MulMatId, Table};
use super::oclgrind::Watch;
use super::program::Source;
use super::runtime::{Allocator, Buffer, Runtime};
use super::top_k::TopK;
use super::weights::Converted;
use crate::backend::gather::Gathering;
use crate::backend::gpu::unsupported;
use crate::backend::moves;
use crate::backend::routing::{Reuse, Tables};
use crate::backend::{Complaints, Device, DeviceError, DeviceInfo, Guards, LoadError, NO_LLAMA};

/// An open OpenCL device.
pub(super) struct OpenClDevice {
    info: DeviceInfo,
    runtime: Runtime,
    /// When sorted slots are used again.
    reuse: Reuse,
    loaded: Option<Loaded>,
    /// Where somebody watches.
    watch: Option<Watch>,
}

/// A plan with its memory.
struct Loaded {
    plan: Plan,
    memory: Vec<Memory>,
    steps: Vec<LoadedStep>,
    /// What is known of the tables of sorted slots, and their memory.
    tables: Tables,
    sorted: Vec<Table>,
    /// For the kernel that dirties local memory, in a plan that computes something: memory of others has no guards.
    sink: Option<Buffer>,
}

enum LoadedStep {
    MulMatId(MulMatId),
    Argsort(Argsort),
    TopK(TopK),
    /// Nothing: whoever runs the plan moves the bytes.
    Moves,
}

impl OpenClDevice {
    pub(super) fn open(found: Found, sources: &[Source]) -> Result<Self, DeviceError> {
        let runtime = Runtime::open(&found.device, sources, found.forms)?;
        let watch = runtime.is_watched().then(Watch::default);
        Ok(OpenClDevice { info: found.info, runtime, reuse: Reuse::default(), loaded: None, watch })
    }

    /// The same with another rule of when sorted slots are used again.
    pub(super) fn with_reuse(self, reuse: Reuse) -> Self {
        OpenClDevice { reuse, ..self }
    }

    /// The same with another rule of when pieces are brought together.
    pub(super) fn with_gathering(mut self, gathering: Gathering) -> Self {
        self.runtime.gathering = Some(gathering);
        self
    }

    /// The runtime beside the plan and one of its tensors.
    fn tensor(&mut self, index: usize) -> Result<(&Runtime, &Plan, &mut Memory), DeviceError> {
        let loaded = self.loaded.as_mut().ok_or_else(no_plan)?;
        let memory = loaded.memory.get_mut(index);
        let memory = memory.ok_or_else(|| DeviceError(format!("the plan has no tensor {index}")))?;
        Ok((&self.runtime, &loaded.plan, memory))
    }
}

impl Device for OpenClDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&mut self, plan: &Plan) -> Result<(), LoadError> {
        self.free();
        self.loaded = Some(Loaded::new(&self.runtime, plan, self.reuse)?);
        Ok(self.runtime.finish()?)
    }

    fn write(&mut self, tensor: usize, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        if let Some(loaded) = &mut self.loaded {
            loaded.tables.written(tensor);
        }
        let (runtime, plan, memory) = self.tensor(tensor)?;
        if let Some(converted) = &mut memory.converted {
            converted.before_write(runtime, &plan.tensors[tensor], &memory.raw, bytes.len())?;
        }
        runtime.write(&mut memory.raw, offset, bytes)
    }

    fn read(&mut self, tensor: usize, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let (runtime, plan, memory) = self.tensor(tensor)?;
        if let Some(converted) = &mut memory.converted {
            converted.restore(runtime, &plan.tensors[tensor], &memory.raw)?;
        }
        runtime.read(&memory.raw, offset, bytes)
    }

    fn copy(&mut self, from: usize, parts: &[Part]) -> Result<(), DeviceError> {
        let loaded = self.loaded.as_mut().ok_or_else(no_plan)?;
        let source = loaded.bytes(from).ok_or_else(|| DeviceError(format!("the plan has no tensor {from}")))?;
        loaded.check("copy", parts, source)?;
        loaded.before_reads(&self.runtime, [from])?;
        loaded.before_writes(&self.runtime, parts)?;
        self.runtime.copy(&loaded.memory, from, parts)
    }

    fn upload(&mut self, from: &[u8], parts: &[Part]) -> Result<(), DeviceError> {
        let loaded = self.loaded.as_mut().ok_or_else(no_plan)?;
        loaded.check("upload", parts, from.len())?;
        loaded.before_writes(&self.runtime, parts)?;
        self.runtime.upload(&mut loaded.memory, from, parts)
    }

    fn fetch(&mut self, to: &mut [u8], parts: &[Part]) -> Result<(), DeviceError> {
        let loaded = self.loaded.as_mut().ok_or_else(no_plan)?;
        loaded.check("fetch", parts, to.len())?;
        loaded.before_reads(&self.runtime, parts.iter().map(|p| p.tensor))?;
        self.runtime.fetch(&loaded.memory, to, parts)
    }

    fn poison_scratch(&mut self, pattern: u32) -> Result<(), DeviceError> {
        if let Some(loaded) = &mut self.loaded {
            loaded.tables.forget();
            let of_steps = loaded.steps.iter().flat_map(LoadedStep::scratch);
            for buffer in of_steps.chain(loaded.sorted.iter().flat_map(Table::scratch)) {
                self.runtime.fill(buffer, pattern)?;
            }
            if let Some(sink) = &loaded.sink {
                self.runtime.dirty_local_memory(sink, pattern)?;
            }
        }
        self.runtime.finish()
    }

    fn run(&mut self, steps: Range<usize>) -> Result<(), DeviceError> {
        let loaded = self.loaded.as_mut().ok_or_else(no_plan)?;
        let queued = loaded.enqueue(&self.runtime, steps);
        // Whatever was queued before an error ends before anything is freed or read.
        let finished = self.runtime.finish();
        queued.and(finished)
    }

    fn free(&mut self) {
        // Copies may be queued still. A failure has nobody left to be told to.
        let _ = self.runtime.finish();
        self.loaded = None;
    }

    fn guards(&mut self) -> Result<Option<Guards>, DeviceError> {
        let Some(loaded) = &self.loaded else { return Ok(None) };
        if loaded.sink.is_none() || self.runtime.is_watched() {
            return Ok(None);
        }
        let mut guards = Guards::default();
        loaded.buffers().try_for_each(|buffer| self.runtime.look(buffer, &mut guards))?;
        Ok(Some(guards))
    }

    fn complaints(&mut self) -> Option<Complaints> {
        self.watch.as_mut()?.complaints()
    }

    fn sorts(&self) -> Option<u64> {
        self.loaded.as_ref().map(|loaded| loaded.tables.sorts())
    }
}

/// Refuses a step that names a tensor the plan hasn't.
fn check_tensors(plan: &Plan, step: &Step) -> Result<(), DeviceError> {
    match step.tensors().into_iter().find(|&t| t >= plan.tensors.len()) {
        Some(t) => Err(DeviceError(format!("a step names tensor {t}, the plan has {}", plan.tensors.len()))),
        None => Ok(()),
    }
}

fn no_plan() -> DeviceError {
    DeviceError("no plan is loaded".to_owned())
}

impl Loaded {
    fn new(runtime: &Runtime, plan: &Plan, reuse: Reuse) -> Result<Self, LoadError> {
        runtime.kernels.fill.supported()?;
        let has_kernels = plan.steps.iter().any(|step| !step.moves_bytes());
        // Guards are for kernels; what moves bytes is told where they go.
        let plain = Allocator::new(runtime);
        let mut memory = if has_kernels && !runtime.is_watched() { plain.guarded() } else { plain };
        let mut tensors = Vec::with_capacity(plan.tensors.len());
        for t in &plan.tensors {
            // A view has nothing of its own; a byte stands for it, since an allocation must have some.
            let bytes = if matches!(t.role, Role::View { .. }) { 1 } else { t.parent_bytes() };
            tensors.push(Memory { raw: memory.buffer(&t.name, bytes)?, converted: None });
        }
        let mut steps = Vec::with_capacity(plan.steps.len());
        let (mut tables, mut sorted) = (Tables::new(plan, reuse), Vec::new());
        for step in &plan.steps {
            check_tensors(plan, step)?;
            let loaded = LoadedStep::load(&mut memory, plan, step, &mut tables)?;
            if let LoadedStep::MulMatId(step) = &loaded {
                sorted.extend(step.new_table(&mut memory, sorted.len())?);
            }
            steps.push(loaded);
            if let Step::MulMatId { weights, .. } = *step {
                let t = &plan.tensors[weights];
                if matches!(t.role, Role::View { .. }) {
                    return unsupported(format!("weights '{}' are a view of another tensor", t.name));
                }
                if t.ty == ElemType::Mxfp4 && tensors[weights].converted.is_none() {
                    tensors[weights].converted = Some(Converted::new(&mut memory, t)?);
                }
            }
        }
        let sink = has_kernels.then(|| memory.scratch("a word of local memory", 1)).transpose()?;
        Ok(Loaded { plan: plan.clone(), memory: tensors, steps, tables, sorted, sink })
    }

    /// All memory that there is.
    fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let converted = self.memory.iter().filter_map(|m| m.converted.as_ref()).flat_map(|c| [&c.scale, &c.code]);
        let scratch = self.steps.iter().flat_map(LoadedStep::scratch);
        let tables = self.sorted.iter().flat_map(Table::scratch);
        self.memory.iter().map(|m| &m.raw).chain(converted).chain(scratch).chain(tables).chain(&self.sink)
    }

    /// Bytes of a tensor's allocation.
    fn bytes(&self, tensor: usize) -> Option<usize> {
        self.memory.get(tensor).map(|m| m.raw.bytes)
    }

    fn check(&self, call: &str, parts: &[Part], other: usize) -> Result<(), DeviceError> {
        parts.iter().try_for_each(|p| moves::check(call, p, |t| self.bytes(t), other))
    }

    /// Makes the raw bytes of tensors what a reader should see.
    fn before_reads(&mut self, runtime: &Runtime, tensors: impl IntoIterator<Item = usize>) -> Result<(), DeviceError> {
        // Most of very many parts follow others of the same tensor.
        let mut last = None;
        let tensors = tensors.into_iter().filter(|i| last.replace(*i) != Some(*i));
        for i in tensors.collect::<BTreeSet<_>>() {
            let Memory { raw, converted } = &mut self.memory[i];
            if let Some(converted) = converted {
                converted.restore(runtime, &self.plan.tensors[i], raw)?;
            }
        }
        Ok(())
    }

    /// Makes the raw bytes the truth of tensors of which parts are about to be written.
    fn before_writes(&mut self, runtime: &Runtime, parts: &[Part]) -> Result<(), DeviceError> {
        self.tables.parts_written(parts);
        for part in parts {
            let Memory { raw, converted } = &mut self.memory[part.tensor];
            if let Some(converted) = converted {
                let run = if moves::is_run(part) { part.bytes() } else { 0 };
                converted.before_write(runtime, &self.plan.tensors[part.tensor], raw, run)?;
            }
        }
        Ok(())
    }

    fn enqueue(&mut self, runtime: &Runtime, steps: Range<usize>) -> Result<(), DeviceError> {
        let count = self.steps.len();
        let wanted = self.steps.get(steps.clone());
        let wanted = wanted.ok_or_else(|| DeviceError(format!("steps {steps:?} of a plan of {count}")))?;
        for (step, planned) in wanted.iter().zip(&self.plan.steps[steps]) {
            match step {
                LoadedStep::MulMatId(s) => {
                    s.convert_weights(runtime, &self.plan, &mut self.memory)?;
                    s.enqueue(runtime, &self.plan, &self.memory, &mut self.tables, &self.sorted)?;
                }
                LoadedStep::Argsort(s) => s.enqueue(runtime, &self.plan, &self.memory)?,
                LoadedStep::TopK(s) => s.enqueue(runtime, &self.plan, &self.memory)?,
                LoadedStep::Moves => {}
            }
            self.tables.step_written(planned);
        }
        Ok(())
    }
}

impl LoadedStep {
    fn load(memory: &mut Allocator<'_>, plan: &Plan, step: &Step, tables: &mut Tables) -> Result<Self, LoadError> {
        Ok(match *step {
            Step::MulMatId { weights, x, ids, out } => {
                LoadedStep::MulMatId(MulMatId::load(memory, plan, [weights, x, ids, out], tables)?)
            }
            Step::Argsort { x, out, order } => LoadedStep::Argsort(Argsort::load(memory, plan, [x, out], order)?),
            Step::TopK { x, out } => LoadedStep::TopK(TopK::load(memory, plan, [x, out])?),
            Step::Copy { .. } | Step::Upload { .. } | Step::Fetch { .. } | Step::Fill { .. } => LoadedStep::Moves,
            Step::Llama { .. } => return Err(LoadError::Unsupported(NO_LLAMA.to_owned())),
        })
    }

    fn scratch(&self) -> Vec<&Buffer> {
        match self {
            LoadedStep::MulMatId(s) => s.scratch(),
            LoadedStep::Argsort(s) => s.scratch(),
            LoadedStep::TopK(_) | LoadedStep::Moves => Vec::new(),
        }
    }
}
