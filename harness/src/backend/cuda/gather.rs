//! Many small pieces, brought together by a kernel: see [`gather`](crate::backend::gather).

// Every call into the driver is unsafe: it takes raw handles and addresses.
#![allow(unsafe_code)]

use conform_cases::plan::{Part, Place};

use super::memory::Memory;
use super::runtime::{Allocator, Arg, Buffer, Runtime};
use super::transfer::Side;
use crate::backend::gather::{Batch, Span};
use crate::backend::{DeviceError, LoadError};

/// Memory that pieces are brought together in, and the table that says which.
pub(super) struct Staging {
    memory: Buffer,
    table: Buffer,
    blocks: usize,
}

impl Runtime {
    /// Staging memory for a batch; `None` where the device has no room for it.
    pub(super) fn staging(&self, memory: &[Memory], batch: &Batch) -> Result<Option<Staging>, DeviceError> {
        let table = batch.table(&batch.pieces, |tensor| memory[tensor].raw.raw);
        let mut allocator = Allocator::new(self);
        let mut both =
            || Ok((allocator.buffer("staging", batch.window.len())?, allocator.buffer("pieces", table.len())?));
        let (memory, mut entries) = match both() {
            Ok(buffers) => buffers,
            Err(LoadError::Unsupported(_)) => return Ok(None),
            Err(LoadError::Device(e)) => return Err(e),
        };
        self.write(&mut entries, 0, &table)?;
        Ok(Some(Staging { memory, table: entries, blocks: batch.pieces.len() }))
    }

    /// Queues the dense runs of host memory into staging memory and from there into the tensors.
    ///
    /// # Safety
    /// `from` must stay until the stream is empty, and reach as far as the parts of the batch, which were checked.
    pub(super) unsafe fn spread(&self, staging: &Staging, batch: &Batch, from: *const u8) -> Result<(), DeviceError> {
        let (host, device) = (Side::Host(from.cast_mut()), Side::Device(staging.memory.raw));
        for s in &batch.spans {
            // SAFETY: the caller's promise, and staging memory is as long as the window that spans lie in.
            unsafe { self.queue_transfer(&staging.memory, &of(s, batch), host, device, true) }?;
        }
        let args = [Arg::Buffer(&staging.table), Arg::Buffer(&staging.memory)];
        self.launch(&self.kernels.spread, staging.blocks, &args)
    }

    /// Queues the pieces of tensors into staging memory and the dense runs of that into host memory.
    ///
    /// # Safety
    /// As for [`spread`](Self::spread).
    pub(super) unsafe fn gather(&self, staging: &Staging, batch: &Batch, to: *mut u8) -> Result<(), DeviceError> {
        let args = [Arg::Buffer(&staging.table), Arg::Buffer(&staging.memory)];
        self.launch(&self.kernels.gather, staging.blocks, &args)?;
        let (device, host) = (Side::Device(staging.memory.raw), Side::Host(to));
        batch.spans.iter().try_for_each(|s| {
            // SAFETY: as above.
            unsafe { self.queue_transfer(&staging.memory, &of(s, batch), device, host, false) }
        })
    }
}

/// A span as a transfer between staging memory and the host.
fn of(s: &Span, batch: &Batch) -> Part {
    let place = |at| Place { at, stride: s.stride };
    Part { tensor: 0, here: place(s.at - batch.window.start), there: place(s.at), size: s.size, count: s.count }
}
