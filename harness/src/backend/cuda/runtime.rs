//! One device's context, kernels and memory.
//!
//! All work goes into the context's default stream, which keeps launches, fills
//! and copies in order. Launches and fills return at once; a read waits.
//!
//! An error may come from earlier work and may have ended the context, and
//! nothing tells the two apart for sure. So after any failure but a refused
//! allocation the context counts as lost: every later call is refused, and the
//! parent, which is told of the failure, starts a fresh worker.

// Every call into the driver is unsafe: it takes raw handles and addresses.
#![allow(unsafe_code)]

use std::cell::{OnceCell, RefCell};
use std::ffi::{CString, c_void};
use std::ptr;
use std::rc::Rc;

use conform_cases::model::Kernels as ModelKernels;
use conform_cases::plan::Tensor;

use super::api::{Api, CUcontext, CUdevice, CUdeviceptr, CUfunction, CUmodule, Code, Failure, OUT_OF_MEMORY};
use super::nvrtc::Nvrtc;
use super::probe::FoundDevice;
use super::program::{Compiler, GROUP, Kernels, Moves, Source};
use crate::backend::gather::Gathering;
use crate::backend::{DeviceError, DeviceMemory, LoadError};

/// Blocks of one launch: the driver's limit for the first dimension of a grid.
const MAX_BLOCKS: u64 = i32::MAX as u64;

/// Allocations of a plan together that are tried without asking how much memory is free.
const SMALL: u64 = 1 << 28;

/// The primary context of one device.
pub(super) struct Context {
    pub(super) api: &'static Api,
    device: CUdevice,
    raw: CUcontext,
    /// The first failure.
    lost: RefCell<Option<String>>,
}

impl Context {
    fn open(device: CUdevice) -> Result<Rc<Self>, DeviceError> {
        let api = Api::get().map_err(DeviceError)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is valid for the call, and the driver refuses a device it does not have.
        let code = unsafe { (api.cuDevicePrimaryCtxRetain)(&mut raw, device) };
        api.check(code).map_err(|e| DeviceError(format!("cuDevicePrimaryCtxRetain {device}: {e}")))?;
        let context = Rc::new(Context { api, device, raw, lost: RefCell::new(None) });
        context.enter()?;
        Ok(context)
    }

    /// Makes this the thread's context. To be called before any other work of a request.
    pub(super) fn enter(&self) -> Result<(), DeviceError> {
        if let Some(first) = &*self.lost.borrow() {
            return Err(DeviceError(format!("the context is lost since {first}")));
        }
        // SAFETY: the context is retained as long as this lives.
        self.check(unsafe { (self.api.cuCtxSetCurrent)(self.raw) }, "cuCtxSetCurrent", "context")
    }

    /// Turns a failure into a line that names the call and its object, and remembers it.
    pub(super) fn check(&self, code: Code, call: &str, object: &str) -> Result<(), DeviceError> {
        self.api.check(code).map_err(|failure| self.lose(&failure, call, object))
    }

    fn lose(&self, failure: &Failure, call: &str, object: &str) -> DeviceError {
        let line = format!("{call} {object}: {failure}");
        self.lost.borrow_mut().get_or_insert_with(|| line.clone());
        DeviceError(line)
    }

    /// Loads what the compiler made of a file.
    pub(super) fn module(self: &Rc<Self>, file: &str, mut image: Vec<u8>) -> Result<Module, DeviceError> {
        // Assembly is text up to a NUL; machine code knows its own length.
        image.push(0);
        let mut raw = ptr::null_mut();
        // SAFETY: the image outlives the call, which copies it.
        let code = unsafe { (self.api.cuModuleLoadData)(&mut raw, image.as_ptr().cast()) };
        self.check(code, "cuModuleLoadData", file)?;
        Ok(Module { context: Rc::clone(self), raw })
    }

    /// Finds a kernel in a module.
    pub(super) fn kernel(&self, module: &Module, name: &'static str) -> Result<Kernel, DeviceError> {
        let text = CString::new(name).map_err(|_| DeviceError(format!("{name} has a NUL")))?;
        let mut raw = ptr::null_mut();
        // SAFETY: the module is loaded, the name is a terminated string, and the pointer is valid for the call.
        let code = unsafe { (self.api.cuModuleGetFunction)(&mut raw, module.raw, text.as_ptr()) };
        self.check(code, "cuModuleGetFunction", name)?;
        Ok(Kernel { name, raw })
    }

    fn memory(&self) -> Result<DeviceMemory, DeviceError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are valid for the call.
        self.check(unsafe { (self.api.cuMemGetInfo_v2)(&mut free, &mut total) }, "cuMemGetInfo", "context")?;
        Ok(DeviceMemory { free: free as u64, total: total as u64 })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once. A failure leaves nothing to be done.
        unsafe { (self.api.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

/// A loaded file.
pub(super) struct Module {
    context: Rc<Context>,
    raw: CUmodule,
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was loaded once, and its kernels are dropped with it. A failure leaves nothing to be done.
            unsafe { (self.context.api.cuModuleUnload)(self.raw) };
        }
    }
}

/// A kernel of a loaded file.
pub(super) struct Kernel {
    name: &'static str,
    raw: CUfunction,
}

impl Kernel {
    /// Refuses a launch of more blocks than a grid can have.
    pub(super) fn countable(&self, blocks: u64) -> Result<(), LoadError> {
        if blocks > MAX_BLOCKS {
            let name = self.name;
            return Err(LoadError::Unsupported(format!("{name} needs {blocks} blocks, a grid has {MAX_BLOCKS}")));
        }
        Ok(())
    }

    /// The same for a launch of a thread per item.
    pub(super) fn countable_items(&self, items: u64) -> Result<(), LoadError> {
        self.countable(items.div_ceil(GROUP as u64))
    }
}

/// Device memory with its name in messages.
pub(super) struct Buffer {
    context: Rc<Context>,
    pub(super) name: String,
    pub(super) bytes: usize,
    pub(super) raw: CUdeviceptr,
}

impl Buffer {
    fn check(&self, what: &str, offset: usize, len: usize) -> Result<(), DeviceError> {
        if offset.checked_add(len).is_none_or(|end| end > self.bytes) {
            let (name, bytes) = (&self.name, self.bytes);
            return Err(DeviceError(format!("{what} {name}: {len} bytes at {offset}, but it has {bytes}")));
        }
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // In a lost context there is nothing to be freed; the process that has it ends soon.
        if self.context.enter().is_ok() {
            // SAFETY: it was allocated once, and the driver frees it after all work that was queued before.
            let code = unsafe { (self.context.api.cuMemFree_v2)(self.raw) };
            // The failure is remembered, and told to whoever calls next.
            let _ = self.context.check(code, "cuMemFree", &self.name);
        }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub(super) enum Arg<'a> {
    Buffer(&'a Buffer),
    U32(u32),
    U64(u64),
    /// Offset and strides of a view, `View`.
    View([u64; 4]),
    /// Two dimensions, `Dims`.
    Dims([u32; 2]),
}

impl Arg<'_> {
    /// Puts the argument behind others, as C lays out parameters.
    fn append_to(self, packed: &mut Vec<u8>) {
        let mut append = |align: usize, bytes: &[u8]| {
            packed.resize(packed.len().next_multiple_of(align), 0);
            packed.extend_from_slice(bytes);
        };
        match self {
            Arg::Buffer(b) => append(8, &b.raw.to_ne_bytes()),
            Arg::U32(v) => append(4, &v.to_ne_bytes()),
            Arg::U64(v) => append(8, &v.to_ne_bytes()),
            Arg::View(v) => v.into_iter().for_each(|v| append(8, &v.to_ne_bytes())),
            Arg::Dims(v) => v.into_iter().for_each(|v| append(4, &v.to_ne_bytes())),
        }
    }
}

/// An open device: whatever runs on it goes through here.
pub(super) struct Runtime {
    pub(super) kernels: Kernels,
    /// MXFP4 experts with many tokens are multiplied on tensor cores.
    pub(super) tensor_cores: bool,
    /// When pieces are brought together.
    pub(super) gathering: Gathering,
    moves: OnceCell<Moves>,
    compiler: Compiler,
    pub(super) context: Rc<Context>,
}

impl Runtime {
    /// Opens the device and compiles the kernels for its chip.
    pub(super) fn open(device: &FoundDevice, nvrtc: Nvrtc, sources: Vec<Source>) -> Result<Self, DeviceError> {
        let context = Context::open(device.device)?;
        let compiler = Compiler { nvrtc, chip: device.chip, sources };
        let kernels = Kernels::load(&compiler, &context)?;
        let tensor_cores = device.info.capabilities.kernels == ModelKernels::OwnTensor;
        let (gathering, moves) = (Gathering::USUAL, OnceCell::new());
        Ok(Runtime { kernels, tensor_cores, gathering, moves, compiler, context })
    }

    /// The kernels that move pieces, which few devices need.
    pub(super) fn moves(&self) -> Result<&Moves, DeviceError> {
        if let Some(moves) = self.moves.get() {
            return Ok(moves);
        }
        let loaded = Moves::load(&self.compiler, &self.context)?;
        Ok(self.moves.get_or_init(|| loaded))
    }

    /// To be called before any other work of a request.
    pub(super) fn enter(&self) -> Result<(), DeviceError> {
        self.context.enter()
    }

    pub(super) fn memory(&self) -> Result<DeviceMemory, DeviceError> {
        self.context.memory()
    }

    /// Queues blocks of a kernel.
    pub(super) fn launch(&self, kernel: &Kernel, blocks: usize, args: &[Arg<'_>]) -> Result<(), DeviceError> {
        self.launch_sharing(kernel, blocks, 0, args)
    }

    /// The same, with bytes of shared memory that the kernel does not declare itself.
    pub(super) fn launch_sharing(
        &self,
        kernel: &Kernel,
        blocks: usize,
        shared: usize,
        args: &[Arg<'_>],
    ) -> Result<(), DeviceError> {
        let name = kernel.name;
        let too_many = |_| DeviceError(format!("{name}: {blocks} blocks and {shared} bytes of shared memory"));
        let grid = i32::try_from(blocks).map_err(too_many)?.cast_unsigned();
        let shared = u32::try_from(shared).map_err(too_many)?;
        let mut packed = Vec::new();
        args.iter().for_each(|arg| arg.append_to(&mut packed));
        let mut size = packed.len();
        // CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE and _END.
        let mut extra: [*mut c_void; 5] = [
            ptr::without_provenance_mut(1),
            packed.as_mut_ptr().cast(),
            ptr::without_provenance_mut(2),
            ptr::from_mut(&mut size).cast(),
            ptr::null_mut(),
        ];
        // SAFETY: the arguments are copied out of a buffer of the size that is told, and outlive the call. They fit the
        // kernel by its call in this backend; buffers among them are freed by a call that waits for the kernel. Kernels
        // check their bounds against these arguments.
        let code = unsafe {
            (self.context.api.cuLaunchKernel)(
                kernel.raw,
                grid,
                1,
                1,
                GROUP as u32,
                1,
                1,
                shared,
                ptr::null_mut(),
                ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        };
        self.context.check(code, "cuLaunchKernel", name)
    }

    /// Queues at least `items` threads of a kernel that checks its bounds.
    pub(super) fn launch_items(&self, kernel: &Kernel, items: usize, args: &[Arg<'_>]) -> Result<(), DeviceError> {
        self.launch(kernel, items.div_ceil(GROUP), args)
    }

    /// Queues filling a buffer of 32-bit words.
    pub(super) fn fill(&self, buffer: &Buffer, pattern: u32) -> Result<(), DeviceError> {
        // SAFETY: so many words lie inside of the buffer, whose address is that of an allocation.
        let code =
            unsafe { (self.context.api.cuMemsetD32Async)(buffer.raw, pattern, buffer.bytes / 4, ptr::null_mut()) };
        self.context.check(code, "cuMemsetD32Async", &buffer.name)
    }

    /// Waits for all queued work.
    pub(super) fn finish(&self) -> Result<(), DeviceError> {
        // SAFETY: takes nothing.
        self.context.check(unsafe { (self.context.api.cuCtxSynchronize)() }, "cuCtxSynchronize", "context")
    }

    /// Writes bytes at an offset, after all queued work.
    pub(super) fn write(&self, buffer: &mut Buffer, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        buffer.check("write", offset, bytes.len())?;
        // SAFETY: the range lies inside of the buffer, and pageable memory has been read when the call returns.
        let code = unsafe {
            (self.context.api.cuMemcpyHtoD_v2)(buffer.raw + offset as u64, bytes.as_ptr().cast(), bytes.len())
        };
        self.context.check(code, "cuMemcpyHtoD", &buffer.name)
    }

    /// Reads bytes from an offset, after all queued work.
    pub(super) fn read(&self, buffer: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        buffer.check("read", offset, bytes.len())?;
        // SAFETY: the range lies inside of the buffer, and the bytes have been written when the call returns.
        let code = unsafe {
            (self.context.api.cuMemcpyDtoH_v2)(bytes.as_mut_ptr().cast(), buffer.raw + offset as u64, bytes.len())
        };
        self.context.check(code, "cuMemcpyDtoH", &buffer.name)
    }
}

/// Offset and strides of a tensor as kernels take them.
pub(super) fn view(t: &Tensor) -> Arg<'static> {
    let s = t.strides();
    Arg::View([t.offset() as u64, s[1] as u64, s[2] as u64, s[3] as u64])
}

/// Allocates the memory of one plan. A plan that needs more than is free is refused with the numbers; dropping what was
/// allocated for it gives all of it back.
pub(super) struct Allocator<'a> {
    pub(super) runtime: &'a Runtime,
    /// Bytes asked for so far.
    used: u64,
    /// What was free before the first of them, and all there is, once someone asked.
    memory: Option<DeviceMemory>,
}

impl<'a> Allocator<'a> {
    /// With nothing allocated yet.
    pub(super) fn new(runtime: &'a Runtime) -> Self {
        Allocator { runtime, used: 0, memory: None }
    }

    /// Memory for a tensor, a table or scratch, of exactly this size.
    pub(super) fn buffer(&mut self, name: &str, bytes: usize) -> Result<Buffer, LoadError> {
        let context = &self.runtime.context;
        let before = self.used;
        self.used = self.used.saturating_add(bytes as u64);
        if self.used > SMALL {
            let DeviceMemory { free, total } = match self.memory {
                Some(memory) => memory,
                None => context.memory().map(|m| DeviceMemory { free: m.free.saturating_add(before), ..m })?,
            };
            self.memory = Some(DeviceMemory { free, total });
            if self.used > free {
                let used = self.used;
                let why = format!("with {name} the plan needs {used} bytes, {free} of the device's {total} are free");
                return Err(LoadError::Unsupported(why));
            }
        }
        let mut raw = 0;
        // SAFETY: the pointer is valid for the call. Nothing has no bytes, but an allocation must have some.
        let code = unsafe { (context.api.cuMemAlloc_v2)(&mut raw, bytes.max(1)) };
        match context.api.check(code) {
            Ok(()) => Ok(Buffer { context: Rc::clone(context), name: name.to_owned(), bytes, raw }),
            Err(failure) if failure.code == OUT_OF_MEMORY => {
                let DeviceMemory { free, total } = context.memory()?;
                let why = format!(
                    "cuMemAlloc {name}: {failure}: {bytes} bytes after {before} of the plan, {free} of the device's \
                     {total} are free"
                );
                Err(LoadError::Unsupported(why))
            }
            Err(failure) => Err(context.lose(&failure, "cuMemAlloc", name).into()),
        }
    }

    /// Scratch of 32-bit words, named after its step and poisoned, so that nothing can rely on zeros.
    pub(super) fn scratch(&mut self, name: &str, words: usize) -> Result<Buffer, LoadError> {
        let bytes =
            words.checked_mul(4).ok_or_else(|| LoadError::Unsupported(format!("{name} needs {words} words")))?;
        let buffer = self.buffer(name, bytes)?;
        self.runtime.fill(&buffer, u32::MAX)?;
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_laid_out_as_c_does() {
        let mut packed = Vec::new();
        for arg in [Arg::U32(1), Arg::View([2, 3, 4, 5]), Arg::U32(6), Arg::Dims([7, 8]), Arg::U64(9)] {
            arg.append_to(&mut packed);
        }
        let words: Vec<u32> = packed.chunks_exact(4).map(|w| u32::from_ne_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words, [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 7, 8, 0, 9, 0]);
    }
}
