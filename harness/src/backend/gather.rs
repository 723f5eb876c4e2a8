//! Many small pieces on a device with memory of its own, where every transfer costs microseconds: a kernel brings them
//! together in staging memory that is laid out as the host's side is, and few large transfers move that.
//!
//! This is what a device needs for it: which pieces go together, what a kernel is told of them, and which runs of bytes
//! the host's side has of them. Pieces that go to the same bytes have no order.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::mpsc::sync_channel;
use std::thread;

use conform_cases::plan::{Part, Place};

use super::DeviceError;
use super::moves::{is_run, pieces, transfers};
use super::spans::{Span, add, few};

/// What one work-group moves.
const CHUNK: usize = 1 << 16;

/// Words of a table's entry.
const ENTRY: usize = 5;

/// Rows of fewer bytes are slow in a transfer of many.
const TINY: usize = 64;

/// With as many transfers the next batch is made while one is moved: less is done before a thread runs.
const OVERLAPPED: usize = 1 << 12;

/// When pieces are brought together, and how many at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gathering {
    /// With fewer transfers nothing is gained: staging memory costs as much as hundreds of them.
    least: usize,
    /// Nor with larger ones, on average: such a transfer takes as long as its bytes do.
    small: usize,
    /// Bytes of staging memory at most.
    staging: usize,
    /// Entries of a table, after which a batch takes no other transfer. What waits for the first is short.
    entries: usize,
}

/// Parts that are worth it, in the order of the host's side.
pub(super) struct Together<'a> {
    parts: Cow<'a, [Part]>,
    gathering: Gathering,
    transfers: usize,
    extent: usize,
}

/// Pieces that are moved together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Batch {
    /// What the kernels read: for each tensor the entries of its pieces. An entry is five 64-bit words: where the piece
    /// lies in the tensor, its place in staging memory, both strides, and rows and bytes of a row as 32 bits each.
    pub(super) tables: Vec<(usize, Vec<u8>)>,
    /// What they cover on the host's side.
    pub(super) spans: Vec<Span>,
    /// From the first of these bytes to the last: staging memory has them from its start.
    pub(super) window: Range<usize>,
    entries: usize,
    /// The table that was added to last.
    last: usize,
}

impl Gathering {
    /// What pays on a device with memory of its own.
    pub(super) const USUAL: Self = Gathering { least: 512, small: 1 << 18, staging: 1 << 26, entries: 1 << 15 };

    /// Whatever the parts, in many batches: so that few of them show what many may meet.
    pub(super) const ALWAYS: Self = Gathering { least: 1, small: usize::MAX, staging: 1 << 13, entries: 32 };

    /// The parts as they are brought together, if they are so many, and so small, that it is worth it.
    pub(super) fn together<'a>(&self, parts: &'a [Part]) -> Option<Together<'a>> {
        let (mut count, mut bytes, mut start, mut end, mut is_ordered) = (0, 0usize, usize::MAX, 0, true);
        let mut before = 0;
        for p in parts.iter().filter(|p| p.bytes() > 0) {
            let is_one = is_run(p) || (p.here.stride >= p.size && p.there.stride >= p.size);
            count += if is_run(p) || (is_one && p.size >= TINY) { 1 } else { p.count };
            bytes = bytes.saturating_add(p.bytes());
            let span = Span::there(p);
            (start, end) = (start.min(span.at), end.max(span.end()));
            is_ordered &= is_one && before <= span.at && span.end() - span.at <= self.staging / 2;
            before = span.at;
        }
        if count < self.least.max(1) || bytes / count >= self.small {
            return None;
        }
        let parts = if is_ordered { Cow::Borrowed(parts) } else { Cow::Owned(self.ordered(parts)) };
        Some(Together { parts, gathering: *self, transfers: count, extent: end - start })
    }

    /// Transfers that each need no more than half of the staging memory, in the order of the host's side.
    fn ordered(&self, parts: &[Part]) -> Vec<Part> {
        let most = self.staging / 2;
        let mut all: Vec<Part> = transfers(parts).flat_map(|t| cut(t, most)).collect();
        all.sort_by_key(|t| t.there.at);
        all
    }
}

/// A transfer as several that span at most so many bytes each. Rectangles of equal rows are cut in the same places.
fn cut(t: Part, most: usize) -> Vec<Part> {
    let span = Span::there(&t);
    if span.end() - span.at <= most {
        return vec![t];
    }
    if t.size > most {
        return pieces(t).flat_map(|row| chunks(row, most)).collect();
    }
    bands(t, most / t.there.stride.max(1)).collect()
}

/// One row as pieces of so many bytes.
fn chunks(row: Part, bytes: usize) -> impl Iterator<Item = Part> {
    (0..row.size).step_by(bytes).map(move |at| {
        let moved = |place: Place| Place { at: place.at + at, ..place };
        Part { here: moved(row.here), there: moved(row.there), size: bytes.min(row.size - at), ..row }
    })
}

/// A rectangle as rectangles of so many rows, one at least.
fn bands(t: Part, rows: usize) -> impl Iterator<Item = Part> {
    let rows = rows.max(1);
    (0..t.count).step_by(rows).map(move |at| {
        let moved = |place: Place| Place { at: place.at + at * place.stride, ..place };
        Part { here: moved(t.here), there: moved(t.there), count: rows.min(t.count - at), ..t }
    })
}

impl Together<'_> {
    /// Bytes of staging memory that are enough for each batch.
    pub(super) fn staging(&self) -> usize {
        self.extent.min(self.gathering.staging)
    }

    /// Bytes that are enough for the tables of each batch: the last transfer that it takes may be as large as half of the
    /// staging memory, in pieces of which two are larger than one.
    pub(super) fn tables(&self) -> usize {
        8 * ENTRY * (self.gathering.entries + self.gathering.staging / CHUNK + 2)
    }

    /// Does the work for each batch, in order, until it fails. A tensor's address is added to the places in it.
    pub(super) fn each(
        &self,
        addresses: &[u64],
        mut work: impl FnMut(&Batch) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        thread::scope(|scope| {
            if self.transfers >= OVERLAPPED {
                let (ready, batches) = sync_channel(2);
                let make = move || self.batches(addresses, |batch| ready.send(batch).is_ok());
                if thread::Builder::new().spawn_scoped(scope, make).is_ok() {
                    return batches.into_iter().try_for_each(|batch| work(&batch));
                }
            }
            let mut done = Ok(());
            self.batches(addresses, |batch| {
                done = work(&batch);
                done.is_ok()
            });
            done
        })
    }

    /// The same, where an error says of which tensors pieces were moved.
    pub(super) fn each_told<'a>(
        &self,
        addresses: &[u64],
        name: impl Fn(usize) -> &'a str,
        mut work: impl FnMut(&Batch) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.each(addresses, |batch| work(batch).map_err(|e| batch.failed(e, &name)))
    }

    /// Makes batches as long as they are wanted.
    fn batches(&self, addresses: &[u64], mut is_next_wanted: impl FnMut(Batch) -> bool) {
        let mut batch = Batch::default();
        for t in transfers(&self.parts) {
            let span = Span::there(&t);
            let is_full = batch.entries >= self.gathering.entries
                || span.at < batch.window.start
                || span.end() - batch.window.start > self.gathering.staging;
            if batch.entries > 0 && is_full && !is_next_wanted(std::mem::take(&mut batch).finished()) {
                return;
            }
            batch.add(&t, span, addresses[t.tensor]);
        }
        if batch.entries > 0 {
            is_next_wanted(batch.finished());
        }
    }
}

impl Batch {
    fn add(&mut self, t: &Part, span: Span, address: u64) {
        if self.entries == 0 {
            self.window = span.at..span.at;
        }
        self.window.end = self.window.end.max(span.end());
        add(&mut self.spans, span);
        if t.bytes() <= CHUNK {
            self.enter(t, address);
        } else if t.size <= CHUNK {
            bands(*t, CHUNK / t.size).for_each(|piece| self.enter(&piece, address));
        } else {
            pieces(*t).flat_map(|row| chunks(row, CHUNK)).for_each(|piece| self.enter(&piece, address));
        }
    }

    fn enter(&mut self, p: &Part, address: u64) {
        let words: [u64; ENTRY] = [
            address + p.here.at as u64,
            (p.there.at - self.window.start) as u64,
            p.here.stride as u64,
            p.there.stride as u64,
            (p.count as u64) << 32 | p.size as u64,
        ];
        let mut entry = [0; 8 * ENTRY];
        entry.chunks_exact_mut(8).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_ne_bytes()));
        self.table(p.tensor).extend_from_slice(&entry);
        self.entries += 1;
    }

    fn table(&mut self, tensor: usize) -> &mut Vec<u8> {
        if self.tables.get(self.last).is_none_or(|(of, _)| *of != tensor) {
            let found = self.tables.iter().position(|(of, _)| *of == tensor);
            self.last = found.unwrap_or(self.tables.len());
            if found.is_none() {
                self.tables.push((tensor, Vec::new()));
            }
        }
        &mut self.tables[self.last].1
    }

    fn finished(self) -> Self {
        Batch { spans: few(self.spans), ..self }
    }

    /// Pieces in a table.
    pub(super) fn pieces(table: &[u8]) -> usize {
        table.len() / (8 * ENTRY)
    }

    /// An error with the tensors whose pieces were moved.
    fn failed<'a>(&self, e: DeviceError, name: impl Fn(usize) -> &'a str) -> DeviceError {
        let first = self.tables.first().map_or("none", |(tensor, _)| name(*tensor));
        let others = match self.tables.len() {
            0 | 1 => String::new(),
            n => format!(" and {} other tensors", n - 1),
        };
        DeviceError(format!("{e}, moving pieces of {first}{others}"))
    }
}

#[cfg(test)]
mod tests;
