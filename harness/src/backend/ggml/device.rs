//! An open device: one plan at a time, from bytes to bytes.

// Calls ggml with the plan's tensors.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ops::Range;

use conform_cases::formats::ElemType;
use conform_cases::llama::calls::Call;
use conform_cases::plan::{Part, Plan, Role, Step};

use super::api::{BufferType, Tensor};
use super::catalogue::{Entry, Handle};
use super::graph::Loaded;
use super::library::Ggml;
use super::log;
use super::memory::Backend;
use super::transfer::{Queue, blocks};
use super::types;
use crate::backend::moves::{self, transfers};
use crate::backend::{Device, DeviceError, DeviceInfo, DeviceMemory, LoadError};
use crate::select::spread;

/// How many threads a CPU backend gets, in the environment.
const THREADS: &str = "CONFORM_GGML_THREADS";

/// A plan with fewer products or keys than this gets one thread, as a rule: threads wait for each other by spinning, and
/// where a core is busy with another case that takes longer than the work.
const WORTH_SHARING: usize = 1 << 27;

/// One plan in so many is shared whatever its size, so that sharing is tested at every size.
const SHARED: u64 = 16;

/// A device of a build. What is queued is dropped before the plan, and that before the backend it was allocated for.
pub(super) struct GgmlDevice {
    queue: Queue,
    loaded: Option<Loaded>,
    backend: Backend,
    info: DeviceInfo,
    handle: Handle,
    usual: *mut BufferType,
    threads: Threads,
    ggml: &'static Ggml,
}

impl GgmlDevice {
    pub(super) fn open(ggml: &'static Ggml, entry: Entry) -> Result<Self, DeviceError> {
        let Entry { info, handle } = entry;
        let threads = Threads::from_env()?;
        let backend = Backend::open(ggml, handle.dev)?;
        // SAFETY: the device is of this build's registry.
        let usual = unsafe { (ggml.base.ggml_backend_dev_buffer_type)(handle.dev) };
        Ok(GgmlDevice { queue: Queue::new(ggml), loaded: None, backend, info, handle, usual, threads, ggml })
    }

    /// A tensor, if the bytes lie inside of it and can be had in this way.
    fn tensor(&self, what: &str, index: usize, offset: usize, len: usize) -> Result<*mut Tensor, DeviceError> {
        let loaded = self.loaded.as_ref().ok_or_else(no_plan)?;
        let t = loaded.plan.tensors.get(index);
        let t = t.ok_or_else(|| DeviceError(format!("the plan has no tensor {index}")))?;
        let (name, bytes) = (&t.name, t.parent_bytes());
        if offset.checked_add(len).is_none_or(|end| end > bytes) {
            return Err(DeviceError(format!("{what} '{name}': {len} bytes at {offset}, but it has {bytes}")));
        }
        if self.handle.packed.is_some() && t.role == Role::Weights {
            let buffer = self.info.properties.get("buffer_type").map_or("", String::as_str);
            if what != "write" {
                return Err(DeviceError(format!("{what} '{name}': weights in {buffer} cannot be read back")));
            }
            if len != bytes {
                return Err(DeviceError(format!("{what} '{name}': weights in {buffer} are written as a whole")));
            }
        }
        Ok(loaded.tensors[index])
    }

    /// Sees that all parts lie inside of tensors and the other side.
    fn check(&self, call: &str, parts: &[Part], other: usize) -> Result<(), DeviceError> {
        let tensors = &self.loaded.as_ref().ok_or_else(no_plan)?.plan.tensors;
        let bytes = |i: usize| tensors.get(i).map(conform_cases::plan::Tensor::parent_bytes);
        parts.iter().try_for_each(|p| moves::check(call, p, bytes, other))
    }

    /// The tensor of a transfer, if it can be moved in this way.
    fn end(&self, what: &str, t: &Part) -> Result<*mut Tensor, DeviceError> {
        self.tensor(what, t.tensor, t.here.at, (t.count - 1) * t.here.stride + t.size)
    }

    /// Moves a transfer of a copy through the host, after all that is queued.
    fn copy_through_host(&mut self, from: usize, t: &Part) -> Result<(), DeviceError> {
        let mut piece = vec![0; t.size];
        t.pieces().try_for_each(|(here, there)| {
            self.read(from, there, &mut piece)?;
            self.write(t.tensor, here, &piece)
        })
    }

    /// Asks about each step. An operation that the device does not support must never be computed.
    fn check_support(&self, loaded: &Loaded) -> Result<(), LoadError> {
        for (ops, step) in loaded.ops.iter().zip(&loaded.plan.steps) {
            let is_supported = |op: &*mut Tensor| {
                // SAFETY: device and tensor are alive, and the tensor's sources have their memory, which is looked at.
                unsafe { (self.ggml.base.ggml_backend_dev_supports_op)(self.handle.dev, *op) }
            };
            if !ops.iter().all(is_supported) {
                return Err(LoadError::Unsupported(refusal(&loaded.plan, step)));
            }
        }
        Ok(())
    }
}

impl Device for GgmlDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn decode(&self, ty: ElemType, blocks: &[u8], out: &mut [f32]) -> Result<(), LoadError> {
        types::decode(self.ggml, ty, blocks, out)
    }

    fn load(&mut self, plan: &Plan) -> Result<(), LoadError> {
        self.free();
        let loaded = Loaded::new(self.ggml, &self.handle, self.usual, plan)?;
        self.check_support(&loaded)?;
        if let Some(set_threads) = self.handle.set_threads {
            // SAFETY: the function came from the registry of this very backend.
            unsafe { set_threads(self.backend.raw, self.threads.of(plan)) };
        }
        self.loaded = Some(loaded);
        Ok(())
    }

    fn write(&mut self, tensor: usize, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let raw = self.tensor("write", tensor, offset, bytes.len())?;
        self.queue.finish(&self.backend);
        // SAFETY: the tensor has its memory, the range lies inside of it, and the call returns when the bytes are read.
        unsafe { (self.ggml.base.ggml_backend_tensor_set)(raw, bytes.as_ptr().cast::<c_void>(), offset, bytes.len()) };
        Ok(())
    }

    fn read(&mut self, tensor: usize, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let raw = self.tensor("read", tensor, offset, bytes.len())?;
        self.queue.finish(&self.backend);
        let to = bytes.as_mut_ptr().cast::<c_void>();
        // SAFETY: as above, and the call returns when the bytes are written.
        unsafe { (self.ggml.base.ggml_backend_tensor_get)(raw, to, offset, bytes.len()) };
        Ok(())
    }

    fn copy(&mut self, from: usize, parts: &[Part]) -> Result<(), DeviceError> {
        let tensors = &self.loaded.as_ref().ok_or_else(no_plan)?.plan.tensors;
        let source = tensors.get(from).ok_or_else(|| DeviceError(format!("the plan has no tensor {from}")))?;
        let (ty, bytes) = (source.ty, source.parent_bytes());
        self.check("copy", parts, bytes)?;
        for t in transfers(parts) {
            let loaded = self.loaded.as_ref().ok_or_else(no_plan)?;
            let is_packed = self.handle.packed.is_some();
            if is_packed || ty != loaded.plan.tensors[t.tensor].ty || blocks(ty, t.size).is_none() {
                self.copy_through_host(from, &t)?;
                continue;
            }
            let ends = (loaded.tensors[from], loaded.tensors[t.tensor]);
            self.queue.copy(&self.backend, ends, &t, blocks(ty, t.size).unwrap_or(0))?;
        }
        Ok(())
    }

    fn upload(&mut self, from: &[u8], parts: &[Part]) -> Result<(), DeviceError> {
        self.check("upload", parts, from.len())?;
        let queued = transfers(parts).try_for_each(|t| {
            let raw = self.end("write", &t)?;
            // SAFETY: the ranges were checked, and `from` is borrowed until all is done.
            unsafe { self.queue.write(&self.backend, raw, from.as_ptr(), &t) };
            Ok(())
        });
        self.queue.finish(&self.backend);
        queued
    }

    fn fetch(&mut self, to: &mut [u8], parts: &[Part]) -> Result<(), DeviceError> {
        self.check("fetch", parts, to.len())?;
        let queued = transfers(parts).try_for_each(|t| {
            let raw = self.end("read", &t)?;
            // SAFETY: as above.
            unsafe { self.queue.read(&self.backend, raw, to.as_mut_ptr(), &t) };
            Ok(())
        });
        self.queue.finish(&self.backend);
        queued
    }

    fn llama(&mut self, model: &[u8], calls: &[Call], log: &mut [u8]) -> Result<(), LoadError> {
        if self.handle.packed.is_some() {
            return Err(LoadError::Unsupported("libllama chooses buffers itself: ask the device without them".into()));
        }
        self.free();
        let dev = if self.handle.is_cpu { std::ptr::null_mut() } else { self.handle.dev };
        super::llama::run(self.ggml, dev, model, calls, log)
    }

    fn poison_scratch(&mut self, _pattern: u32) -> Result<(), DeviceError> {
        Ok(())
    }

    fn run(&mut self, steps: Range<usize>) -> Result<(), DeviceError> {
        self.queue.finish(&self.backend);
        let graph = self.loaded.as_mut().ok_or_else(no_plan)?.graph(self.ggml, steps)?;
        log::forget();
        // SAFETY: backend and graph are alive, the graph's tensors have memory of this device, and each operation was
        // seen to be supported. The call returns when the work is done.
        let status = unsafe { (self.ggml.base.ggml_backend_graph_compute)(self.backend.raw, graph.raw) };
        let meaning = match status {
            0 => return Ok(()),
            -2 => "allocation failed",
            -1 => "failed",
            1 => "aborted",
            _ => "unknown",
        };
        Err(DeviceError(format!("ggml_backend_graph_compute: status {status} ({meaning}){}", log::complaint())))
    }

    fn free(&mut self) {
        self.queue.finish(&self.backend);
        self.loaded = None;
    }

    fn memory(&self) -> Option<DeviceMemory> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the device is of this build's registry, and the two numbers are written to.
        unsafe { (self.ggml.base.ggml_backend_dev_memory)(self.handle.dev, &raw mut free, &raw mut total) };
        DeviceMemory::told(free as u64, total as u64).filter(|_| !self.handle.is_cpu)
    }
}

/// How many threads a plan gets.
enum Threads {
    /// As the environment says.
    Always(c_int),
    /// One for most small plans, one per core for others.
    BySize,
}

impl Threads {
    fn from_env() -> Result<Self, DeviceError> {
        let Ok(text) = std::env::var(THREADS) else { return Ok(Threads::BySize) };
        let number = text.parse().ok().filter(|n| (1..=512).contains(n));
        let number = number.ok_or_else(|| DeviceError(format!("{THREADS}={text}: not a number from 1 to 512")))?;
        Ok(Threads::Always(number))
    }

    fn of(&self, plan: &Plan) -> c_int {
        let work = |step: &Step| match *step {
            Step::MulMatId { weights, out, .. } => plan.tensors[out].elements() * plan.tensors[weights].shape[0],
            Step::Argsort { x, .. } | Step::TopK { x, .. } => plan.tensors[x].elements(),
            Step::Copy { .. } | Step::Upload { .. } | Step::Fetch { .. } | Step::Fill { .. } | Step::Llama { .. } => 0,
        };
        // A case always is or never.
        let is_chosen = spread(&plan.case).is_multiple_of(SHARED);
        match *self {
            Threads::Always(number) => number,
            Threads::BySize if !is_chosen && plan.steps.iter().map(work).sum::<usize>() < WORTH_SHARING => 1,
            Threads::BySize => {
                let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
                c_int::try_from(cores.clamp(2, 512)).unwrap_or(1)
            }
        }
    }
}

/// The limit is the backend's own and has no text: what was asked is said instead.
fn refusal(plan: &Plan, step: &Step) -> String {
    let describe = |i: usize| {
        let t = &plan.tensors[i];
        let view = if t.is_contiguous() { "" } else { ", a view" };
        format!("{} {}{:?}{view}", t.name, t.ty, t.shape)
    };
    let (op, sources) = match *step {
        Step::MulMatId { weights, x, ids, .. } => ("mul_mat_id", vec![weights, x, ids]),
        Step::Argsort { x, .. } => ("argsort", vec![x]),
        Step::TopK { x, .. } => ("top_k", vec![x]),
        Step::Copy { .. } | Step::Upload { .. } | Step::Fetch { .. } | Step::Fill { .. } => ("moving bytes", vec![]),
        Step::Llama { .. } => ("libllama", vec![]),
    };
    let sources: Vec<String> = sources.into_iter().map(describe).collect();
    format!("ggml_backend_dev_supports_op says no to {op} of {}", sources.join(", "))
}

fn no_plan() -> DeviceError {
    DeviceError("no plan is loaded".to_owned())
}
