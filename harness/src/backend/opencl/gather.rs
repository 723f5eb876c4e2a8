//! Many small pieces on a device with memory of its own, brought together by a kernel: see
//! [`gather`](crate::backend::gather).

// Every call into the OpenCL API that enqueues work is unsafe in `opencl3`.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;

use conform_cases::plan::Part;
use opencl3::types::CL_NON_BLOCKING;

use super::memory::Memory;
use super::program::Kernel;
use super::runtime::{Allocator, Arg, Buffer, Runtime};
use crate::backend::gather::{Batch, Span, Work, batches};
use crate::backend::{DeviceError, LoadError};

/// The kernels, compiled when they are first needed.
pub(super) struct Moves {
    pub(super) gather: Kernel,
    pub(super) spread: Kernel,
}

/// Memory that pieces are brought together in, and for each tensor a table and its number of entries.
struct Staging {
    memory: Buffer,
    tables: BTreeMap<usize, (Buffer, usize)>,
}

impl Runtime {
    /// Writes pieces of host memory. The parts were checked against the tensors and `from`.
    pub(super) fn upload_together(
        &self,
        memory: &mut [Memory],
        from: &[u8],
        parts: &[Part],
    ) -> Result<(), DeviceError> {
        for work in batches(parts) {
            let (batch, staging) = match self.staged(work)? {
                Ok(staged) => staged,
                Err(alone) => {
                    self.upload_each(memory, from, &alone)?;
                    continue;
                }
            };
            let queued = self.spread(memory, from, &batch, staging);
            let finished = self.finish();
            queued.and(finished)?;
        }
        Ok(())
    }

    /// Reads pieces into host memory, in the same way.
    pub(super) fn fetch_together(&self, memory: &[Memory], to: &mut [u8], parts: &[Part]) -> Result<(), DeviceError> {
        for work in batches(parts) {
            let (batch, staging) = match self.staged(work)? {
                Ok(staged) => staged,
                Err(alone) => {
                    self.fetch_each(memory, to, &alone)?;
                    continue;
                }
            };
            let queued = self.gather(memory, to, &batch, &staging);
            let finished = self.finish();
            queued.and(finished)?;
        }
        Ok(())
    }

    /// Staging memory for a batch, or parts to be moved one by one: it covers too much, or there is no room.
    #[allow(clippy::type_complexity)]
    fn staged(&self, work: Work) -> Result<Result<(Batch, Staging), Vec<Part>>, DeviceError> {
        let batch = match work {
            Work::Together(batch) => batch,
            Work::Alone(part) => return Ok(Err(vec![part])),
        };
        let mut pieces: BTreeMap<usize, Vec<Part>> = BTreeMap::new();
        batch.pieces.iter().for_each(|p| pieces.entry(p.tensor).or_default().push(*p));
        let mut allocator = Allocator::new(self);
        let mut all = || -> Result<_, LoadError> {
            let memory = allocator.buffer("staging", batch.window.len())?;
            let mut tables = BTreeMap::new();
            for (tensor, pieces) in &pieces {
                let table = batch.table(pieces, |_| 0);
                let mut buffer = allocator.buffer("pieces", table.len())?;
                self.write(&mut buffer, 0, &table)?;
                tables.insert(*tensor, (buffer, pieces.len()));
            }
            Ok(Staging { memory, tables })
        };
        match all() {
            Ok(staging) => Ok(Ok((batch, staging))),
            Err(LoadError::Unsupported(_)) => Ok(Err(batch.pieces)),
            Err(LoadError::Device(e)) => Err(e),
        }
    }

    fn spread(&self, memory: &[Memory], from: &[u8], batch: &Batch, mut staging: Staging) -> Result<(), DeviceError> {
        let moves = self.moves()?;
        let Buffer { name, raw, .. } = &mut staging.memory;
        for run in runs(batch) {
            let (at, bytes) = (run.start - batch.window.start, &from[run]);
            // SAFETY: spans lie in the window that staging memory is as long as, and the queue is empty before the
            // caller's borrow of `from` ends.
            let event = unsafe { self.queue.enqueue_write_buffer(raw, CL_NON_BLOCKING, at, bytes, &[]) };
            self.keep(event, "clEnqueueWriteBuffer", name)?;
        }
        staging.tables.iter().try_for_each(|(tensor, (table, groups))| {
            let args = [Arg::Buffer(table), Arg::Buffer(&memory[*tensor].raw), Arg::Buffer(&staging.memory)];
            self.launch(&moves.spread, *groups, &args)
        })
    }

    fn gather(&self, memory: &[Memory], to: &mut [u8], batch: &Batch, staging: &Staging) -> Result<(), DeviceError> {
        let moves = self.moves()?;
        for (tensor, (table, groups)) in &staging.tables {
            let args = [Arg::Buffer(table), Arg::Buffer(&memory[*tensor].raw), Arg::Buffer(&staging.memory)];
            self.launch(&moves.gather, *groups, &args)?;
        }
        let Buffer { name, raw, .. } = &staging.memory;
        for run in runs(batch) {
            let (at, bytes) = (run.start - batch.window.start, &mut to[run]);
            // SAFETY: as for `spread`.
            let event = unsafe { self.queue.enqueue_read_buffer(raw, CL_NON_BLOCKING, at, bytes, &[]) };
            self.keep(event, "clEnqueueReadBuffer", name)?;
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
