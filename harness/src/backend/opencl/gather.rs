//! Many small pieces on a device with memory of its own, brought together by a kernel: see
//! [`gather`](crate::backend::gather).
//!
//! One batch follows the other in the queue, in the same memory.

// Every call into the OpenCL API that enqueues work is unsafe in `opencl3`.
#![allow(unsafe_code)]

use std::ops::Range;

use opencl3::types::{CL_BLOCKING, CL_NON_BLOCKING, cl_bool};

use super::memory::Memory;
use super::program::Kernel;
use super::runtime::{Allocator, Arg, Buffer, Runtime};
use crate::backend::DeviceError;
use crate::backend::gather::{Batch, Together};
use crate::backend::spans::Span;

/// The kernels, compiled when they are first needed.
pub(super) struct Moves {
    pub(super) gather: Kernel,
    pub(super) spread: Kernel,
}

/// Memory that pieces are brought together in, for the tables that say which, and the kernels that do it.
pub(super) struct Staging<'a> {
    memory: Buffer,
    tables: Buffer,
    moves: &'a Moves,
}

impl Runtime {
    /// Staging memory for these parts; `None` where the device has no room for it, or does not run the kernels.
    pub(super) fn staging(&self, together: &Together<'_>) -> Result<Option<Staging<'_>>, DeviceError> {
        let moves = self.moves()?;
        if moves.gather.supported().and(moves.spread.supported()).is_err() {
            return Ok(None);
        }
        let mut allocator = Allocator::new(self);
        let mut room = |name, bytes| {
            let mut buffer = allocator.buffer(name, bytes).ok()?;
            self.is_there(&mut buffer).then_some(buffer)
        };
        // Whatever else may be wrong is told by the transfers that take the place of this.
        let both = room("staging", together.staging()).zip(room("pieces", together.tables()));
        Ok(both.map(|(memory, tables)| Staging { memory, tables, moves }))
    }

    /// Whether there is memory behind a buffer. Many implementations look for it when it is first used, and a kernel that
    /// finds none is a failed launch.
    fn is_there(&self, buffer: &mut Buffer) -> bool {
        let last = buffer.bytes - 1;
        // SAFETY: buffers here have some bytes, and a blocking call does not use what it is given after it returns.
        unsafe { self.queue.enqueue_write_buffer(&mut buffer.raw, CL_BLOCKING, last, &[0u8], &[]) }.is_ok()
    }

    /// Writes the dense runs of host memory into staging memory and from there into the tensors.
    pub(super) fn spread(
        &self,
        mut staging: Staging<'_>,
        memory: &[Memory],
        from: &[u8],
        together: &Together<'_>,
    ) -> Result<(), DeviceError> {
        self.each_batch(memory, together, |batch| {
            let Buffer { name, raw, .. } = &mut staging.memory;
            for run in runs(batch) {
                let (at, bytes) = (run.start - batch.window.start, &from[run]);
                // SAFETY: spans lie in the window that staging memory is as long as, and the queue is empty before the
                // caller's borrow of `from` ends.
                let event = unsafe { self.queue.enqueue_write_buffer(raw, waits(bytes), at, bytes, &[]) };
                self.keep(event, "clEnqueueWriteBuffer", name)?;
            }
            self.launch_each(&mut staging, |moves| &moves.spread, memory, batch)
        })
    }

    /// Brings pieces of tensors into staging memory and reads the dense runs of that into host memory.
    pub(super) fn gather(
        &self,
        mut staging: Staging<'_>,
        memory: &[Memory],
        to: &mut [u8],
        together: &Together<'_>,
    ) -> Result<(), DeviceError> {
        self.each_batch(memory, together, |batch| {
            self.launch_each(&mut staging, |moves| &moves.gather, memory, batch)?;
            let Buffer { name, raw, .. } = &staging.memory;
            for run in runs(batch) {
                let (at, bytes) = (run.start - batch.window.start, &mut to[run]);
                // SAFETY: as for `spread`.
                let event = unsafe { self.queue.enqueue_read_buffer(raw, waits(bytes), at, bytes, &[]) };
                self.keep(event, "clEnqueueReadBuffer", name)?;
            }
            Ok(())
        })
    }

    /// Does the work for each batch and waits for all of it.
    fn each_batch(
        &self,
        memory: &[Memory],
        together: &Together<'_>,
        work: impl FnMut(&Batch) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        // Kernels are given the tensor, and places in it.
        let places = vec![0; memory.len()];
        self.finish_after(together.each_told(&places, |tensor| &memory[tensor].raw.name, work))
    }

    /// Queues a kernel for each tensor.
    fn launch_each(
        &self,
        staging: &mut Staging<'_>,
        kernel: impl Fn(&Moves) -> &Kernel,
        memory: &[Memory],
        batch: &Batch,
    ) -> Result<(), DeviceError> {
        let (mut at, mut first) = (0, 0);
        for (tensor, table) in &batch.tables {
            let pieces = Batch::pieces(table);
            // Tables of earlier batches were read when this is written: the queue is in order.
            self.write(&mut staging.tables, at, table)?;
            at += table.len();
            let args = [
                Arg::Buffer(&staging.tables),
                Arg::U64(first as u64),
                Arg::Buffer(&memory[*tensor].raw),
                Arg::Buffer(&staging.memory),
            ];
            self.launch(kernel(staging.moves), pieces, &args)?;
            first += pieces;
        }
        Ok(())
    }
}

/// The dense runs of a batch. Rectangles are left only where parts leave gaps in every row.
fn runs(batch: &Batch) -> impl Iterator<Item = Range<usize>> + '_ {
    let rows = |s: &Span| {
        let Span { count, stride, at, size } = *s;
        (0..count).map(move |i| at + i * stride..at + i * stride + size)
    };
    batch.spans.iter().flat_map(rows)
}

/// Large runs are waited for, as plain reads and writes are; small ones are queued.
fn waits(run: &[u8]) -> cl_bool {
    if run.len() >= 1 << 20 { CL_BLOCKING } else { CL_NON_BLOCKING }
}
