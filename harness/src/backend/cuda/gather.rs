//! Many small pieces, brought together by a kernel: see [`gather`](crate::backend::gather).
//!
//! One batch follows the other in the stream, in the same memory; what the host gives away is read before a call that
//! queues it returns, or it is there until the stream is empty.

// Every call into the driver is unsafe: it takes raw handles and addresses.
#![allow(unsafe_code)]

use conform_cases::plan::{Part, Place};

use super::memory::Memory;
use super::program::Moves;
use super::runtime::{Allocator, Arg, Buffer, Runtime};
use super::transfer::Side;
use crate::backend::gather::{Batch, Together};
use crate::backend::spans::Span;
use crate::backend::{DeviceError, LoadError};

/// Memory that pieces are brought together in, for the tables that say which, and the kernels that do it.
pub(super) struct Staging<'a> {
    memory: Buffer,
    tables: Buffer,
    moves: &'a Moves,
}

impl Runtime {
    /// Staging memory for these parts; `None` where the device has no room for it.
    pub(super) fn staging(&self, together: &Together<'_>) -> Result<Option<Staging<'_>>, DeviceError> {
        let moves = self.moves()?;
        let mut allocator = Allocator::new(self);
        let mut both =
            || Ok((allocator.buffer("staging", together.staging())?, allocator.buffer("pieces", together.tables())?));
        match both() {
            Ok((memory, tables)) => Ok(Some(Staging { memory, tables, moves })),
            Err(LoadError::Unsupported(_)) => Ok(None),
            Err(LoadError::Device(e)) => Err(e),
        }
    }

    /// Queues the dense runs of host memory into staging memory and from there into the tensors.
    ///
    /// # Safety
    /// `from` must stay until the stream is empty, and reach as far as the parts, which were checked.
    pub(super) unsafe fn spread(
        &self,
        mut staging: Staging<'_>,
        memory: &[Memory],
        together: &Together<'_>,
        from: *const u8,
    ) -> Result<(), DeviceError> {
        self.each_batch(memory, together, |batch| {
            let (host, device) = (Side::Host(from.cast_mut()), Side::Device(staging.memory.raw));
            for s in &batch.spans {
                // SAFETY: the caller's promise, and staging memory is as long as the window that spans lie in.
                unsafe { self.queue_transfer(&staging.memory, &of(s, batch), host, device, true) }?;
            }
            let blocks = self.write_tables(&mut staging, batch)?;
            let args = [Arg::Buffer(&staging.tables), Arg::Buffer(&staging.memory)];
            self.launch(&staging.moves.spread, blocks, &args)
        })
    }

    /// Queues the pieces of tensors into staging memory and the dense runs of that into host memory.
    ///
    /// # Safety
    /// As for [`spread`](Self::spread).
    pub(super) unsafe fn gather(
        &self,
        mut staging: Staging<'_>,
        memory: &[Memory],
        together: &Together<'_>,
        to: *mut u8,
    ) -> Result<(), DeviceError> {
        self.each_batch(memory, together, |batch| {
            let blocks = self.write_tables(&mut staging, batch)?;
            let args = [Arg::Buffer(&staging.tables), Arg::Buffer(&staging.memory)];
            self.launch(&staging.moves.gather, blocks, &args)?;
            let (device, host) = (Side::Device(staging.memory.raw), Side::Host(to));
            batch.spans.iter().try_for_each(|s| {
                // SAFETY: as above.
                unsafe { self.queue_transfer(&staging.memory, &of(s, batch), device, host, false) }
            })
        })
    }

    /// Does the work for each batch and waits for all of it, so that staging memory may be freed.
    fn each_batch(
        &self,
        memory: &[Memory],
        together: &Together<'_>,
        work: impl FnMut(&Batch) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let addresses: Vec<u64> = memory.iter().map(|m| m.raw.raw).collect();
        let queued = together.each_told(&addresses, |tensor| &memory[tensor].raw.name, work);
        let finished = self.finish();
        queued.and(finished)
    }

    /// Writes all tables of a batch, one behind the other, after the work that reads those before; the number of pieces.
    fn write_tables(&self, staging: &mut Staging<'_>, batch: &Batch) -> Result<usize, DeviceError> {
        let mut at = 0;
        for (_, table) in &batch.tables {
            self.write(&mut staging.tables, at, table)?;
            at += table.len();
        }
        Ok(batch.tables.iter().map(|(_, table)| Batch::pieces(table)).sum())
    }
}

/// A span as a transfer between staging memory and the host.
fn of(s: &Span, batch: &Batch) -> Part {
    let place = |at| Place { at, stride: s.stride };
    Part { tensor: 0, here: place(s.at - batch.window.start), there: place(s.at), size: s.size, count: s.count }
}
