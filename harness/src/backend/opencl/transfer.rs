//! Bytes on their way: many transfers queued, and waited for once.
//!
//! Uploads and fetches do not return before the queue is empty, with an error or without: nothing that was borrowed is
//! still in use then. Copies inside the device stay queued. A transfer that fails may do so after it was queued; its
//! event has the reason, which is looked at by whoever waits next.

// Every call into the OpenCL API that enqueues work is unsafe in `opencl3`.
#![allow(unsafe_code)]

use std::ptr;
use std::rc::Rc;

use conform_cases::plan::Part;
use opencl3::command_queue::{enqueue_copy_buffer, enqueue_copy_buffer_rect};
use opencl3::error_codes::ClError;
use opencl3::event::Event;
use opencl3::memory::ClMem;
use opencl3::types::CL_NON_BLOCKING;

use super::error::failed;
use super::memory::Memory;
use super::runtime::{Buffer, Runtime};
use crate::backend::DeviceError;
use crate::backend::moves::{pieces, transfers};

/// A transfer that was queued.
pub(super) struct Queued {
    event: Event,
    call: &'static str,
    object: Rc<str>,
}

/// More transfers than this are not queued together: each has an event, which is memory of the driver's.
const MOST_QUEUED: usize = 1 << 14;

impl Runtime {
    /// Writes pieces of host memory. The parts were checked against the tensors and `from`.
    pub(super) fn upload(&self, memory: &mut [Memory], from: &[u8], parts: &[Part]) -> Result<(), DeviceError> {
        if let Some(together) = self.gathering.and_then(|g| g.together(parts))
            && let Some(staging) = self.staging(&together)?
        {
            return self.spread(staging, memory, from, &together);
        }
        if self.is_better_mapped(parts) {
            return self.upload_mapped(memory, from, parts);
        }
        let queued = transfers(parts).try_for_each(|t| {
            let buffer = &mut memory[t.tensor].raw;
            let name = Rc::clone(&buffer.name);
            let (raw, start) = buffer.place();
            let call = if t.count == 1 { "clEnqueueWriteBuffer" } else { "clEnqueueWriteBufferRect" };
            // SAFETY: both ranges were checked to lie inside of buffer and memory, and the queue is empty before this
            // function returns: the memory is borrowed that long.
            let event = unsafe {
                if t.count == 1 {
                    let bytes = &from[t.there.at..t.there.at + t.size];
                    self.queue.enqueue_write_buffer(raw, CL_NON_BLOCKING, start + t.here.at, bytes, &[])
                } else {
                    self.queue.enqueue_write_buffer_rect(
                        raw,
                        CL_NON_BLOCKING,
                        [start + t.here.at, 0, 0].as_ptr(),
                        [t.there.at, 0, 0].as_ptr(),
                        [t.size, t.count, 1].as_ptr(),
                        t.here.stride,
                        0,
                        t.there.stride,
                        0,
                        from.as_ptr().cast_mut().cast(),
                        &[],
                    )
                }
            };
            self.keep(event, call, &name)
        });
        self.finish_after(queued)
    }

    /// Reads pieces into host memory, in the same way.
    pub(super) fn fetch(&self, memory: &[Memory], to: &mut [u8], parts: &[Part]) -> Result<(), DeviceError> {
        if let Some(together) = self.gathering.and_then(|g| g.together(parts))
            && let Some(staging) = self.staging(&together)?
        {
            return self.gather(staging, memory, to, &together);
        }
        if self.is_better_mapped(parts) {
            return self.fetch_mapped(memory, to, parts);
        }
        let queued = transfers(parts).try_for_each(|t| {
            let buffer = &memory[t.tensor].raw;
            let (name, (raw, start)) = (&buffer.name, buffer.place_of());
            let call = if t.count == 1 { "clEnqueueReadBuffer" } else { "clEnqueueReadBufferRect" };
            // SAFETY: as for `upload`.
            let event = unsafe {
                if t.count == 1 {
                    let bytes = &mut to[t.there.at..t.there.at + t.size];
                    self.queue.enqueue_read_buffer(raw, CL_NON_BLOCKING, start + t.here.at, bytes, &[])
                } else {
                    self.queue.enqueue_read_buffer_rect(
                        raw,
                        CL_NON_BLOCKING,
                        [start + t.here.at, 0, 0].as_ptr(),
                        [t.there.at, 0, 0].as_ptr(),
                        [t.size, t.count, 1].as_ptr(),
                        t.here.stride,
                        0,
                        t.there.stride,
                        0,
                        to.as_mut_ptr().cast(),
                        &[],
                    )
                }
            };
            self.keep(event, call, name)
        });
        self.finish_after(queued)
    }

    /// Queues copies from a tensor to others or itself. The parts were checked.
    pub(super) fn copy(&self, memory: &[Memory], from: usize, parts: &[Part]) -> Result<(), DeviceError> {
        let source = &memory[from].raw;
        for t in transfers(parts) {
            // Inside of one buffer a rectangle needs equal strides, and PoCL finds an overlap where there is none.
            if t.count == 1 || t.tensor != from {
                self.copy_one(source, &memory[t.tensor].raw, &t)?;
            } else {
                pieces(t).try_for_each(|t| self.copy_one(source, &memory[t.tensor].raw, &t))?;
            }
        }
        Ok(())
    }

    fn copy_one(&self, from: &Buffer, to: &Buffer, t: &Part) -> Result<(), DeviceError> {
        let ((source, from), (target, onto)) = (from.place_of(), to.place_of());
        let (queue, source, target) = (self.queue.get(), source.get(), target.get());
        let (there, here) = (from + t.there.at, onto + t.here.at);
        let call = if t.count == 1 { "clEnqueueCopyBuffer" } else { "clEnqueueCopyBufferRect" };
        // SAFETY: both ranges were checked to lie inside of their buffers, which the API keeps alive while the command is
        // queued. The wrapper's methods take two buffers, and here they may be one.
        let event = unsafe {
            if t.count == 1 {
                enqueue_copy_buffer(queue, source, target, there, here, t.size, 0, ptr::null())
            } else {
                enqueue_copy_buffer_rect(
                    queue,
                    source,
                    target,
                    [there, 0, 0].as_ptr(),
                    [here, 0, 0].as_ptr(),
                    [t.size, t.count, 1].as_ptr(),
                    t.there.stride,
                    0,
                    t.here.stride,
                    0,
                    0,
                    ptr::null(),
                )
            }
        };
        self.keep(event.map(Event::new).map_err(ClError), call, &to.name)
    }

    /// Remembers a queued command, so that its failure is seen.
    pub(super) fn keep(
        &self,
        event: Result<Event, ClError>,
        call: &'static str,
        object: &Rc<str>,
    ) -> Result<(), DeviceError> {
        let event = event.map_err(failed(call, object))?;
        self.queued.borrow_mut().push(Queued { event, call, object: Rc::clone(object) });
        // The borrow has ended: waiting looks at the same list.
        let count = self.queued.borrow().len();
        if count >= MOST_QUEUED { self.finish() } else { Ok(()) }
    }

    pub(super) fn finish_after(&self, queued: Result<(), DeviceError>) -> Result<(), DeviceError> {
        let finished = self.finish();
        queued.and(finished)
    }

    /// What became of the queued transfers, after waiting for them: the first failure.
    pub(super) fn outcome(&self) -> Result<(), DeviceError> {
        let queued = std::mem::take(&mut *self.queued.borrow_mut());
        queued.iter().try_for_each(|Queued { event, call, object }| {
            let status = event.command_execution_status().map_err(failed("clGetEventInfo", object))?;
            if status.0 < 0 { Err(failed(call, object)(ClError(status.0))) } else { Ok(()) }
        })
    }
}
