//! One device's context, queue, kernels and memory.

// Every call into the OpenCL API that hands over memory or enqueues work is unsafe in `opencl3`.
#![allow(unsafe_code)]

use std::cell::{OnceCell, RefCell};
use std::ffi::c_void;
use std::ptr;
use std::rc::Rc;

use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::device::Device as ClDevice;
use opencl3::error_codes::ClError;
use opencl3::memory::{Buffer as ClBuffer, CL_MEM_READ_WRITE, ClMem};
use opencl3::types::{CL_BLOCKING, cl_mem};

use conform_cases::plan::Tensor;

use super::error::failed;
use super::forms::Forms;
use super::gather::Moves;
use super::oclgrind;
use super::program::{GROUP, Kernel, Kernels, Source};
use super::transfer::Queued;
use crate::backend::gather::Gathering;
use crate::backend::{DeviceError, Guards, LoadError};

/// What guards are filled with.
const GUARD: u32 = 0x5ac3_96e1;
/// Bytes of a guard at least.
const LEAST_GUARD: usize = 4096;
/// Local memory that is dirtied at most: more than any kernel here uses.
const MOST_DIRTY: u64 = 1 << 17;

/// What the device says it can do.
pub(super) struct Limits {
    pub(super) max_alloc: u64,
    pub(super) global_mem: u64,
    pub(super) local_mem: u64,
    /// Its memory is the host's own.
    pub(super) shares_memory: bool,
    /// Bytes of a guard: where a part of memory may begin, and room for a mistake.
    guard: usize,
    /// Work-groups that run at once, about.
    groups: usize,
    /// Work-items per launch that a size_t of the device can count.
    max_items: u64,
}

/// An open device: whatever runs on it goes through here.
pub(super) struct Runtime {
    context: Context,
    /// In order.
    pub(super) queue: CommandQueue,
    /// Transfers that nobody has waited for yet.
    pub(super) queued: RefCell<Vec<Queued>>,
    pub(super) kernels: Kernels,
    moves: OnceCell<Moves>,
    forms: Forms,
    pub(super) limits: Limits,
    /// When pieces are brought together on the device, if it has memory of its own.
    pub(super) gathering: Option<Gathering>,
}

/// Device memory with its name in messages.
pub(super) struct Buffer {
    pub(super) name: Rc<str>,
    pub(super) bytes: usize,
    pub(super) raw: ClBuffer<u8>,
    /// What `raw` is the middle of, where it has guards.
    whole: Option<Whole>,
}

/// Memory with a guard on both sides.
struct Whole {
    raw: ClBuffer<u8>,
    bytes: usize,
    /// Bytes before what is guarded.
    guard: usize,
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub(super) enum Arg<'a> {
    Buffer(&'a Buffer),
    /// Memory with its guards.
    Guarded(&'a ClBuffer<u8>),
    U32(u32),
    U64(u64),
    /// Offset and strides of a view, `ulong4`.
    View([u64; 4]),
    /// Two dimensions, `uint2`.
    Dims([u32; 2]),
    /// Bytes of local memory.
    Local(usize),
}

impl Runtime {
    /// Creates context and queue and compiles the kernels.
    pub(super) fn open(device: &ClDevice, sources: &[Source], forms: Forms) -> Result<Self, DeviceError> {
        let info = |e| failed("clGetDeviceInfo", "limits")(e);
        let limits = Limits {
            max_alloc: device.max_mem_alloc_size().map_err(info)?,
            global_mem: device.global_mem_size().map_err(info)?,
            local_mem: device.local_mem_size().map_err(info)?,
            // The question is deprecated: no answer is a no.
            shares_memory: device.host_unified_memory().unwrap_or(false),
            guard: LEAST_GUARD.next_multiple_of((device.mem_base_addr_align().map_err(info)? as usize / 8).max(4)),
            groups: 4 * device.max_compute_units().map_err(info)? as usize,
            max_items: if device.address_bits().map_err(info)? == 32 { u32::MAX.into() } else { u64::MAX },
        };
        let context = Context::from_device(device).map_err(failed("clCreateContext", "device"))?;
        // SAFETY: the device is the one that the context was created from.
        let queue = unsafe { CommandQueue::create(&context, device.id(), 0) };
        let queue = queue.map_err(failed("clCreateCommandQueue", "in order"))?;
        let kernels = Kernels::compile(&context, sources, forms)?;
        let gathering = match forms.watched {
            // So that the kernels that do it are watched as well.
            true => (!oclgrind::looks_for_unwritten()).then_some(Gathering::ALWAYS),
            false => (!limits.shares_memory).then_some(Gathering::USUAL),
        };
        let (queued, moves) = (RefCell::default(), OnceCell::new());
        Ok(Runtime { context, queue, queued, kernels, moves, forms, limits, gathering })
    }

    /// Whether each access of a kernel is watched: then memory needs no guards.
    pub(super) fn is_watched(&self) -> bool {
        self.forms.watched
    }

    /// The kernels that move pieces.
    pub(super) fn moves(&self) -> Result<&Moves, DeviceError> {
        if let Some(moves) = self.moves.get() {
            return Ok(moves);
        }
        let compiled = Moves::compile(&self.context, self.forms)?;
        Ok(self.moves.get_or_init(|| compiled))
    }

    /// Enqueues `groups` work-groups of a kernel.
    pub(super) fn launch(&self, kernel: &Kernel, groups: usize, args: &[Arg<'_>]) -> Result<(), DeviceError> {
        for (i, arg) in args.iter().enumerate() {
            set_argument(kernel, i as u32, *arg).map_err(failed("clSetKernelArg", &format!("{} {i}", kernel.name)))?;
        }
        let (global, local) = (groups * GROUP, GROUP);
        // SAFETY: the sizes are one-dimensional and outlive the call; every argument was set above (a missing one is
        // refused by the driver), and buffers outlive the launch: they are released only after a `finish`, and the
        // API keeps memory objects of queued commands alive. Kernels check their bounds against those arguments.
        let queued =
            unsafe { self.queue.enqueue_nd_range_kernel(kernel.raw.get(), 1, ptr::null(), &global, &local, &[]) };
        queued.map(drop).map_err(failed("clEnqueueNDRangeKernel", kernel.name))
    }

    /// Enqueues at least `items` work-items of a kernel that checks its bounds.
    pub(super) fn launch_items(&self, kernel: &Kernel, items: usize, args: &[Arg<'_>]) -> Result<(), DeviceError> {
        self.launch(kernel, items.div_ceil(GROUP), args)
    }

    /// Refuses a launch with more work-items than the device can count.
    pub(super) fn countable(&self, kernel: &Kernel, items: u64) -> Result<(), LoadError> {
        if items.saturating_add(GROUP as u64) > self.limits.max_items {
            let (name, limit) = (kernel.name, self.limits.max_items);
            return Err(LoadError::Unsupported(format!(
                "{name} needs {items} work-items, the device counts to {limit}"
            )));
        }
        Ok(())
    }

    /// Fills a buffer of 32-bit words.
    pub(super) fn fill(&self, buffer: &Buffer, pattern: u32) -> Result<(), DeviceError> {
        let words = buffer.bytes / 4;
        let args = [Arg::Buffer(buffer), Arg::U64(words as u64), Arg::U32(pattern)];
        self.launch_items(&self.kernels.fill, words, &args)
    }

    /// Leaves a pattern in the local memory of about every work-group that can run: what a kernel does not write there
    /// is not zero by chance.
    pub(super) fn dirty_local_memory(&self, sink: &Buffer, pattern: u32) -> Result<(), DeviceError> {
        let words = (self.limits.local_mem / 2).min(MOST_DIRTY) as usize / 4;
        if words == 0 {
            return Ok(());
        }
        let args = [Arg::Buffer(sink), Arg::U32(words as u32), Arg::U32(pattern), Arg::Local(4 * words)];
        self.launch(&self.kernels.dirty, self.limits.groups, &args)
    }

    /// Looks at the guards of a buffer, if it has some.
    pub(super) fn look(&self, buffer: &Buffer, guards: &mut Guards) -> Result<(), DeviceError> {
        let Buffer { name, bytes, whole: Some(Whole { raw: whole, bytes: of, guard }), .. } = buffer else {
            return Ok(());
        };
        let (mut before, mut after) = (vec![0; *guard], vec![0; of - guard - bytes]);
        for (offset, part) in [(0, &mut before), (guard + bytes, &mut after)] {
            // SAFETY: both ranges lie inside of the memory, and a blocking call does not use them after it returns.
            let done = unsafe { self.queue.enqueue_read_buffer(whole, CL_BLOCKING, offset, part, &[]) };
            done.map(drop).map_err(failed("clEnqueueReadBuffer", name))?;
        }
        let filled =
            |from: usize, len: usize| (from..from + len).map(|i| GUARD.to_le_bytes()[i % 4]).collect::<Vec<_>>();
        let (was_before, was_after) = (filled(0, before.len()), filled(guard + bytes, after.len()));
        guards.look(name, *bytes, [&before, &after], [&was_before, &was_after]);
        Ok(())
    }

    /// Waits for all queued work. A transfer that failed is an error here.
    pub(super) fn finish(&self) -> Result<(), DeviceError> {
        let finished = self.queue.finish().map_err(failed("clFinish", "queue"));
        self.outcome().and(finished)
    }

    /// Writes bytes at an offset, after all queued work.
    pub(super) fn write(&self, buffer: &mut Buffer, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        buffer.check("write", offset, bytes.len())?;
        // SAFETY: the range lies inside of the buffer, and a blocking call does not use `bytes` after it returns.
        let done = unsafe { self.queue.enqueue_write_buffer(&mut buffer.raw, CL_BLOCKING, offset, bytes, &[]) };
        done.map(drop).map_err(failed("clEnqueueWriteBuffer", &buffer.name))?;
        self.outcome()
    }

    /// Reads bytes from an offset, after all queued work.
    pub(super) fn read(&self, buffer: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        buffer.check("read", offset, bytes.len())?;
        // SAFETY: the range lies inside of the buffer, and a blocking call does not use `bytes` after it returns.
        let done = unsafe { self.queue.enqueue_read_buffer(&buffer.raw, CL_BLOCKING, offset, bytes, &[]) };
        done.map(drop).map_err(failed("clEnqueueReadBuffer", &buffer.name))?;
        self.outcome()
    }
}

impl Buffer {
    /// The memory that it is a part of, and where in it. Transfers go there: PoCL 3.1 crashes where rectangles of a part
    /// are moved.
    pub(super) fn place(&mut self) -> (&mut ClBuffer<u8>, usize) {
        match &mut self.whole {
            Some(whole) => (&mut whole.raw, whole.guard),
            None => (&mut self.raw, 0),
        }
    }

    /// The same to read from.
    pub(super) fn place_of(&self) -> (&ClBuffer<u8>, usize) {
        match &self.whole {
            Some(whole) => (&whole.raw, whole.guard),
            None => (&self.raw, 0),
        }
    }

    fn check(&self, what: &str, offset: usize, len: usize) -> Result<(), DeviceError> {
        if offset.checked_add(len).is_none_or(|end| end > self.bytes) {
            let (name, bytes) = (&self.name, self.bytes);
            return Err(DeviceError(format!("{what} {name}: {len} bytes at {offset}, but it has {bytes}")));
        }
        Ok(())
    }
}

/// Offset and strides of a tensor as kernels take them.
pub(super) fn view(t: &Tensor) -> Arg<'static> {
    let s = t.strides();
    Arg::View([t.offset() as u64, s[1] as u64, s[2] as u64, s[3] as u64])
}

fn set_argument(kernel: &Kernel, index: u32, arg: Arg<'_>) -> Result<(), ClError> {
    let raw = &kernel.raw;
    // SAFETY: the driver copies the value during the call and refuses an index or a size that does not fit the kernel;
    // a buffer is passed as its handle, which is valid as long as the `Buffer` lives.
    unsafe {
        match arg {
            Arg::Buffer(b) => raw.set_arg::<cl_mem>(index, &b.raw.get()),
            Arg::Guarded(whole) => raw.set_arg::<cl_mem>(index, &whole.get()),
            Arg::U32(v) => raw.set_arg(index, &v),
            Arg::U64(v) => raw.set_arg(index, &v),
            Arg::View(v) => raw.set_arg(index, &v),
            Arg::Dims(v) => raw.set_arg(index, &v),
            Arg::Local(bytes) => raw.set_arg_local_buffer(index, bytes),
        }
    }
}

/// Allocates the memory of one plan, inside the limits of the device.
pub(super) struct Allocator<'a> {
    pub(super) runtime: &'a Runtime,
    is_guarded: bool,
    used: u64,
}

impl<'a> Allocator<'a> {
    /// With nothing allocated yet.
    pub(super) fn new(runtime: &'a Runtime) -> Self {
        Allocator { runtime, is_guarded: false, used: 0 }
    }

    /// The same with guards on both sides of all that is allocated.
    pub(super) fn guarded(self) -> Self {
        Allocator { is_guarded: true, ..self }
    }

    /// Memory for a tensor, a table or scratch, of exactly this size. Where there are guards what is written beyond it
    /// lands in one.
    pub(super) fn buffer(&mut self, name: &str, bytes: usize) -> Result<Buffer, LoadError> {
        let limits = &self.runtime.limits;
        if bytes as u64 > limits.max_alloc {
            let limit = limits.max_alloc;
            let why = format!("{name} needs {bytes} bytes, CL_DEVICE_MAX_MEM_ALLOC_SIZE is {limit}");
            return Err(LoadError::Unsupported(why));
        }
        self.used += bytes as u64 + if self.is_guarded { 2 * limits.guard as u64 } else { 0 };
        if self.used > limits.global_mem {
            let (used, limit) = (self.used, limits.global_mem);
            let why = format!("with {name} the plan needs {used} bytes, CL_DEVICE_GLOBAL_MEM_SIZE is {limit}");
            return Err(LoadError::Unsupported(why));
        }
        let none: *mut c_void = ptr::null_mut();
        if !self.is_guarded {
            // SAFETY: no host pointer is handed over.
            let raw = unsafe { ClBuffer::create(&self.runtime.context, CL_MEM_READ_WRITE, bytes, none) };
            let raw = raw.map_err(failed("clCreateBuffer", name))?;
            return Ok(Buffer { name: name.into(), bytes, raw, whole: None });
        }
        let guard = limits.guard;
        // Whole words, so that it can be filled.
        let of = (2 * guard + bytes).next_multiple_of(4);
        // SAFETY: as above.
        let whole = unsafe { ClBuffer::create(&self.runtime.context, CL_MEM_READ_WRITE, of, none) };
        let whole = whole.map_err(failed("clCreateBuffer", name))?;
        let fill = [Arg::Guarded(&whole), Arg::U64(of as u64 / 4), Arg::U32(GUARD)];
        self.runtime.launch_items(&self.runtime.kernels.fill, of / 4, &fill)?;
        // SAFETY: the part lies inside of the memory, and begins where the device says that parts may.
        let raw = unsafe { whole.create_sub_buffer(CL_MEM_READ_WRITE, guard, bytes) };
        let raw = raw.map_err(failed("clCreateSubBuffer", name))?;
        Ok(Buffer { name: name.into(), bytes, raw, whole: Some(Whole { raw: whole, bytes: of, guard }) })
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
