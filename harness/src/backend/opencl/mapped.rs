//! Very many transfers on a device that shares its memory with the host: there a command costs more than its bytes, and
//! they are moved between slices of mapped buffers.

// Mapping hands out addresses.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr;

use conform_cases::plan::Part;
use opencl3::memory::{CL_MAP_READ, CL_MAP_WRITE, ClMem};
use opencl3::types::{CL_BLOCKING, cl_map_flags};

use super::error::failed;
use super::memory::Memory;
use super::runtime::Runtime;
use crate::backend::DeviceError;
use crate::backend::moves::transfers;

/// As many transfers are worth mapping a buffer for.
const MANY: usize = 1 << 11;

/// The mapped part of a buffer.
struct Mapped {
    /// In the buffer.
    range: Range<usize>,
    /// What lies at its start.
    at: *mut u8,
}

impl Runtime {
    /// Whether these parts are so many that they are better moved by the host.
    pub(super) fn is_better_mapped(&self, parts: &[Part]) -> bool {
        self.limits.shares_memory && parts.len() >= MANY && transfers(parts).nth(MANY - 1).is_some()
    }

    /// Writes pieces of host memory. The parts were checked against the tensors and `from`.
    pub(super) fn upload_mapped(&self, memory: &[Memory], from: &[u8], parts: &[Part]) -> Result<(), DeviceError> {
        self.with_mapped(memory, parts, CL_MAP_WRITE, |mapped, t| {
            for (here, there) in t.pieces() {
                let source = &from[there..there + t.size];
                // SAFETY: the pieces lie in the mapped range, which covers all parts of the tensor, and a slice of the
                // host's own does not overlap it.
                unsafe { ptr::copy_nonoverlapping(source.as_ptr(), mapped.at.add(here - mapped.range.start), t.size) };
            }
        })
    }

    /// Reads pieces into host memory, in the same way.
    pub(super) fn fetch_mapped(&self, memory: &[Memory], to: &mut [u8], parts: &[Part]) -> Result<(), DeviceError> {
        self.with_mapped(memory, parts, CL_MAP_READ, |mapped, t| {
            for (here, there) in t.pieces() {
                let target = &mut to[there..there + t.size];
                // SAFETY: as above.
                unsafe {
                    ptr::copy_nonoverlapping(mapped.at.add(here - mapped.range.start), target.as_mut_ptr(), t.size);
                }
            }
        })
    }

    /// Maps what the parts cover of each tensor after all queued work, moves, and gives it back.
    fn with_mapped(
        &self,
        memory: &[Memory],
        parts: &[Part],
        flags: cl_map_flags,
        mut act: impl FnMut(&Mapped, &Part),
    ) -> Result<(), DeviceError> {
        let mut ranges: BTreeMap<usize, Range<usize>> = BTreeMap::new();
        for t in transfers(parts) {
            let end = t.here.at + (t.count - 1) * t.here.stride + t.size;
            let range = ranges.entry(t.tensor).or_insert(t.here.at..end);
            *range = range.start.min(t.here.at)..range.end.max(end);
        }
        let mut mapped: BTreeMap<usize, Mapped> = BTreeMap::new();
        let done = ranges.into_iter().try_for_each(|(tensor, range)| {
            let buffer = &memory[tensor].raw;
            let (raw, start) = buffer.place_of();
            let mut at = ptr::null_mut();
            // SAFETY: the range lies inside of the buffer, as the parts do, and is given back below.
            let event = unsafe {
                let from = start + range.start;
                self.queue.enqueue_map_buffer(raw, CL_BLOCKING, flags, from, range.len(), &mut at, &[])
            };
            event.map_err(failed("clEnqueueMapBuffer", &buffer.name))?;
            mapped.insert(tensor, Mapped { range, at: at.cast() });
            Ok(())
        });
        if done.is_ok() {
            transfers(parts).filter_map(|t| Some((mapped.get(&t.tensor)?, t))).for_each(|(m, t)| act(m, &t));
        }
        let given_back = mapped.into_iter().try_for_each(|(tensor, Mapped { at, .. })| {
            let buffer = &memory[tensor].raw;
            // SAFETY: it was mapped above, once, and is not used any more.
            let event = unsafe { self.queue.enqueue_unmap_mem_object(buffer.place_of().0.get(), at.cast(), &[]) };
            self.keep(event, "clEnqueueUnmapMemObject", &buffer.name)
        });
        let finished = self.finish();
        done.and(given_back).and(finished)
    }
}
