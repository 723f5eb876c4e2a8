//! Bytes on their way: many transfers queued in the context's stream, and waited for once.
//!
//! Uploads and fetches do not return before the stream is empty, with an error or without: nothing that was borrowed is
//! still in use then. Copies inside the device stay queued.

// Every call into the driver is unsafe: it takes raw handles and addresses.
#![allow(unsafe_code)]

use std::ptr;

use conform_cases::plan::Part;
use cudarc::driver::sys::{CUDA_MEMCPY2D, CUmemorytype};

use super::memory::Memory;
use super::runtime::{Buffer, Runtime};
use crate::backend::DeviceError;
use crate::backend::moves::{pieces, transfers};

/// The longest distance between rows that a rectangle can have on any device (`CU_DEVICE_ATTRIBUTE_MAX_PITCH`).
const MAX_PITCH: usize = i32::MAX as usize;

/// One side of a transfer: an address in host or device memory.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Host(*mut u8),
    Device(u64),
}

impl Runtime {
    /// Writes pieces of host memory. The parts were checked against the tensors and `from`.
    pub(super) fn upload(&self, memory: &[Memory], from: &[u8], parts: &[Part]) -> Result<(), DeviceError> {
        if let Some(together) = self.gathering.together(parts)
            && let Some(staging) = self.staging(&together)?
        {
            // SAFETY: the ranges were checked, the memory is only read, and it is borrowed until the stream is empty.
            return unsafe { self.spread(staging, memory, &together, from.as_ptr()) };
        }
        let from = Side::Host(from.as_ptr().cast_mut());
        // SAFETY: as above.
        let queued = rectangles(parts).try_for_each(|t| unsafe {
            let to = &memory[t.tensor].raw;
            self.queue_transfer(to, &t, from, Side::Device(to.raw), true)
        });
        let finished = self.finish();
        queued.and(finished)
    }

    /// Reads pieces into host memory, in the same way.
    pub(super) fn fetch(&self, memory: &[Memory], to: &mut [u8], parts: &[Part]) -> Result<(), DeviceError> {
        if let Some(together) = self.gathering.together(parts)
            && let Some(staging) = self.staging(&together)?
        {
            // SAFETY: as for `upload`, and the memory may be written.
            return unsafe { self.gather(staging, memory, &together, to.as_mut_ptr()) };
        }
        let to = Side::Host(to.as_mut_ptr());
        // SAFETY: as above.
        let queued = rectangles(parts).try_for_each(|t| unsafe {
            let from = &memory[t.tensor].raw;
            self.queue_transfer(from, &t, Side::Device(from.raw), to, false)
        });
        let finished = self.finish();
        queued.and(finished)
    }

    /// Queues copies from a tensor to others or itself. The parts were checked.
    pub(super) fn copy(&self, memory: &[Memory], from: usize, parts: &[Part]) -> Result<(), DeviceError> {
        let source = Side::Device(memory[from].raw.raw);
        // SAFETY: the ranges were checked, and memory is freed by a call that waits for the stream.
        rectangles(parts).try_for_each(|t| unsafe {
            let to = &memory[t.tensor].raw;
            self.queue_transfer(to, &t, source, Side::Device(to.raw), true)
        })
    }

    /// Queues one transfer. `here` is where bytes go to if `is_here_written`, else where they come from.
    ///
    /// # Safety
    /// All pieces must lie inside of what the addresses are the start of, until the stream has done the work.
    pub(super) unsafe fn queue_transfer(
        &self,
        named: &Buffer,
        t: &Part,
        from: Side,
        to: Side,
        is_here_written: bool,
    ) -> Result<(), DeviceError> {
        let (source, target) = if is_here_written { (t.there, t.here) } else { (t.here, t.there) };
        let (api, stream) = (self.context.api, ptr::null_mut());
        if t.count > 1 {
            let (src_type, src_host, src_device) = from.parts();
            let (dst_type, dst_host, dst_device) = to.parts();
            // Where the first row starts is in the address: offsets inside of a row must be less than its pitch.
            let rows = CUDA_MEMCPY2D {
                srcXInBytes: 0,
                srcY: 0,
                srcMemoryType: src_type,
                srcHost: src_host.wrapping_add(source.at).cast(),
                srcDevice: src_device.wrapping_add(source.at as u64),
                srcArray: ptr::null_mut(),
                srcPitch: source.stride,
                dstXInBytes: 0,
                dstY: 0,
                dstMemoryType: dst_type,
                dstHost: dst_host.wrapping_add(target.at).cast(),
                dstDevice: dst_device.wrapping_add(target.at as u64),
                dstArray: ptr::null_mut(),
                dstPitch: target.stride,
                WidthInBytes: t.size,
                Height: t.count,
            };
            // SAFETY: the caller's promise; the description outlives the call, which copies it.
            let code = unsafe { (api.cuMemcpy2DAsync_v2)(&rows, stream) };
            return self.context.check(code, "cuMemcpy2DAsync", &named.name);
        }
        // SAFETY: the caller's promise.
        let (code, call) = unsafe {
            match (from, to) {
                (Side::Host(from), Side::Device(to)) => {
                    let (from, to) = (from.add(source.at).cast_const().cast(), to + target.at as u64);
                    ((api.cuMemcpyHtoDAsync_v2)(to, from, t.size, stream), "cuMemcpyHtoDAsync")
                }
                (Side::Device(from), Side::Host(to)) => {
                    let (from, to) = (from + source.at as u64, to.add(target.at).cast());
                    ((api.cuMemcpyDtoHAsync_v2)(to, from, t.size, stream), "cuMemcpyDtoHAsync")
                }
                (Side::Device(from), Side::Device(to)) => {
                    let (from, to) = (from + source.at as u64, to + target.at as u64);
                    ((api.cuMemcpyDtoDAsync_v2)(to, from, t.size, stream), "cuMemcpyDtoDAsync")
                }
                // No transfer of a device has two ends in the host.
                (Side::Host(_), Side::Host(_)) => return Ok(()),
            }
        };
        self.context.check(code, call, &named.name)
    }
}

impl Side {
    /// Kind of memory, address in the host, address in the device: one of the two is null.
    fn parts(self) -> (CUmemorytype, *mut u8, u64) {
        match self {
            Side::Host(at) => (CUmemorytype::CU_MEMORYTYPE_HOST, at, 0),
            Side::Device(at) => (CUmemorytype::CU_MEMORYTYPE_DEVICE, ptr::null_mut(), at),
        }
    }
}

/// Transfers as rectangles that the driver takes.
fn rectangles(parts: &[Part]) -> impl Iterator<Item = Part> + '_ {
    transfers(parts).flat_map(|t| {
        let is_taken = t.count == 1 || t.here.stride.max(t.there.stride) <= MAX_PITCH;
        // The pieces of a rectangle are cut only where its rows lie too far apart.
        let (whole, cut) = if is_taken { (Some(t), None) } else { (None, Some(pieces(t))) };
        whole.into_iter().chain(cut.into_iter().flatten())
    })
}
