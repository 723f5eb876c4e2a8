//! Many small pieces on a device with memory of its own, where every transfer costs microseconds: a kernel brings them
//! together in staging memory that is laid out as the other side is, and few large transfers move that.
//!
//! This is what a device needs for it: which pieces go together, what a kernel is told of them, and which runs of bytes
//! lie densely on the other side.

use std::ops::Range;

use conform_cases::plan::{Part, Place};

use super::moves::{pieces, transfers};

/// With fewer transfers than this nothing is gained: staging memory costs as much as hundreds of them.
const MANY: usize = 512;

/// Nor with larger ones: by then a transfer takes as long as its bytes do.
const SMALL: usize = 1 << 18;

/// What one work-group moves.
const CHUNK: usize = 1 << 16;

/// Staging memory at most.
const STAGING: usize = 1 << 28;

/// Words of a table's entry.
const ENTRY: usize = 5;

/// Pieces that are moved together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Batch {
    /// Rectangles of at most [`CHUNK`] bytes, or of one row.
    pub(super) pieces: Vec<Part>,
    /// What they cover on the other side: runs, and rectangles of runs.
    pub(super) spans: Vec<Span>,
    /// From the first of these bytes to the last.
    pub(super) window: Range<usize>,
}

/// Runs of equal size on the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    pub(super) count: usize,
    pub(super) stride: usize,
    pub(super) at: usize,
    pub(super) size: usize,
}

/// How some parts are best moved.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Work {
    /// Together.
    Together(Batch),
    /// One by one: they cover too much.
    Alone(Part),
}

/// Whether parts are so many, and so small, that they are better brought together.
pub(super) fn is_worth_it(parts: &[Part]) -> bool {
    let (mut count, mut bytes) = (0, 0);
    for t in transfers(parts) {
        // A rectangle is one transfer, but rows of a few bytes are slow in it.
        count += if t.size < 64 { t.count } else { 1 };
        bytes += t.bytes();
    }
    count >= MANY && bytes / count < SMALL
}

/// Brings parts together, in order, as far as staging memory reaches.
pub(super) fn batches(parts: &[Part]) -> Vec<Work> {
    let mut work = Vec::new();
    let (mut batch, mut moved) = (Batch::default(), Vec::new());
    for t in transfers(parts) {
        let (start, end) = (t.there.at, t.there.at + (t.count - 1) * t.there.stride + t.size);
        let both = match batch.pieces.is_empty() {
            true => start..end,
            false => batch.window.start.min(start)..batch.window.end.max(end),
        };
        if both.len() > STAGING && !batch.pieces.is_empty() {
            finish(&mut work, &mut batch, &mut moved);
        }
        if end - start > STAGING {
            work.push(Work::Alone(t));
            continue;
        }
        batch.window = if batch.pieces.is_empty() { start..end } else { both };
        batch.pieces.extend(chunks(t));
        moved.push(t);
    }
    finish(&mut work, &mut batch, &mut moved);
    work
}

fn finish(work: &mut Vec<Work>, batch: &mut Batch, moved: &mut Vec<Part>) {
    if !batch.pieces.is_empty() {
        batch.spans = spans(moved);
        work.push(Work::Together(std::mem::take(batch)));
    }
    moved.clear();
}

/// A transfer as pieces for a work-group each.
fn chunks(t: Part) -> Vec<Part> {
    if t.size > CHUNK {
        // Each row is cut.
        let cut = |row: Part| {
            (0..row.size).step_by(CHUNK).map(move |at| {
                let shifted = |place: Place| Place { at: place.at + at, ..place };
                Part { here: shifted(row.here), there: shifted(row.there), size: CHUNK.min(row.size - at), ..row }
            })
        };
        return pieces(t).flat_map(cut).collect();
    }
    let rows = CHUNK / t.size;
    let some = |at: usize| {
        let moved = |place: Place| Place { at: place.at + at * place.stride, ..place };
        Part { here: moved(t.here), there: moved(t.there), count: rows.min(t.count - at), ..t }
    };
    (0..t.count).step_by(rows).map(some).collect()
}

/// What transfers cover on the other side, neighbours joined. Bytes that two of them have are in two spans.
fn spans(transfers: &[Part]) -> Vec<Span> {
    let of = |t: &Part| Span {
        count: t.count,
        stride: if t.count > 1 { t.there.stride } else { 0 },
        at: t.there.at,
        size: t.size,
    };
    let joined = joined(transfers.iter().map(of).collect());
    let dense = |s: Span| match s.count > 1 && s.size == s.stride {
        true => Span { count: 1, stride: 0, at: s.at, size: s.size * s.count },
        false => s,
    };
    self::joined(joined.into_iter().map(dense).collect())
}

/// Joins runs, and rectangles of equal rows, that begin where others end.
fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut out: Vec<Span> = Vec::new();
    for s in spans {
        match out.last_mut() {
            Some(last)
                if (last.count, last.stride, last.at + last.size) == (s.count, s.stride, s.at)
                    && (s.count == 1 || last.size + s.size <= s.stride) =>
            {
                last.size += s.size;
            }
            _ => out.push(s),
        }
    }
    out
}

impl Batch {
    /// What the kernels read, an entry of 64-bit words for each piece: where it lies on the device, with what `address`
    /// says of its tensor, where it lies in the staging memory, both strides, and rows and bytes of a row as 32 bits each.
    pub(super) fn table(&self, pieces: &[Part], address: impl Fn(usize) -> u64) -> Vec<u8> {
        let mut table = Vec::with_capacity(8 * ENTRY * pieces.len());
        for p in pieces {
            let words: [u64; ENTRY] = [
                address(p.tensor) + p.here.at as u64,
                (p.there.at - self.window.start) as u64,
                p.here.stride as u64,
                p.there.stride as u64,
                (p.count as u64) << 32 | p.size as u64,
            ];
            words.iter().for_each(|word| table.extend(word.to_ne_bytes()));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::stream::Stream;

    fn part(tensor: usize, here: [usize; 2], there: [usize; 2], size: usize, count: usize) -> Part {
        let place = |[at, stride]: [usize; 2]| Place { at, stride };
        Part { tensor, here: place(here), there: place(there), size, count }
    }

    /// Where each byte of the other side comes from.
    fn bytes(parts: impl IntoIterator<Item = Part>) -> Vec<(usize, usize, usize)> {
        let each = |p: Part| p.pieces().flat_map(move |(h, t)| (0..p.size).map(move |i| (t + i, p.tensor, h + i)));
        let mut all: Vec<_> = parts.into_iter().flat_map(each).collect();
        all.sort_unstable();
        all
    }

    fn covered(spans: &[Span]) -> Vec<usize> {
        let each = |s: &Span| {
            let s = *s;
            (0..s.count).flat_map(move |i| (0..s.size).map(move |b| s.at + i * s.stride + b))
        };
        let mut all: Vec<usize> = spans.iter().flat_map(each).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn neighbours_are_one_span() {
        // Rows of a blob, one after the other, from anywhere.
        let rows: Vec<Part> = (0..100).map(|i| part(0, [7 * i, 0], [50 + 4 * i, 0], 4, 1)).collect();
        assert_eq!(spans(&rows), [Span { count: 1, stride: 0, at: 50, size: 400 }]);
        // Columns of a transposed V: rectangles side by side that fill their rows.
        let columns = [part(0, [0, 64], [0, 10], 6, 5), part(0, [9, 64], [6, 10], 4, 5)];
        assert_eq!(spans(&columns), [Span { count: 1, stride: 0, at: 0, size: 50 }]);
        // They leave a gap in each row.
        assert_eq!(spans(&columns[..1]), [Span { count: 5, stride: 10, at: 0, size: 6 }]);
        // A gap between rows.
        let apart = [part(0, [0, 0], [0, 0], 4, 1), part(0, [4, 0], [5, 0], 4, 1)];
        assert_eq!(spans(&apart).len(), 2);
    }

    #[test]
    fn every_byte_is_moved_once() {
        let mut draw = 0;
        let mut below = |n: usize| {
            draw += 1;
            Stream::new(5, 5).below(draw, n as u64) as usize
        };
        for _ in 0..12 {
            // Parts that do not touch each other on the other side, some beyond what is moved at once.
            let (mut parts, mut end) = (Vec::new(), below(100));
            for tensor in 0..1 + below(6) {
                let (size, count) = ([1, 5, 64, 3000, CHUNK + 77][below(5)], 1 + below(9));
                let stride = if count > 1 { size + [0, 3][below(2)] } else { 0 };
                let here = if count > 1 { size + below(20) } else { 0 };
                parts.push(part(tensor, [below(50), here], [end, stride], size, count));
                end += count.max(2) * stride.max(size) + [0, 1][below(2)];
            }
            let mut moved = Vec::new();
            for work in batches(&parts) {
                let Work::Together(batch) = work else { panic!("{work:?}") };
                assert!(batch.pieces.iter().all(|p| p.bytes() <= CHUNK), "{batch:?}");
                let pieces = bytes(batch.pieces.clone());
                let there: Vec<usize> = pieces.iter().map(|(t, ..)| *t).collect();
                assert_eq!(covered(&batch.spans), there);
                assert_eq!(batch.window, there[0]..there[there.len() - 1] + 1);
                moved.extend(pieces);
            }
            assert_eq!(moved, bytes(parts));
        }
    }

    #[test]
    fn staging_memory_is_bounded() {
        let far = |at: usize| part(0, [at, 0], [at, 0], 100, 1);
        let work = batches(&[far(0), far(STAGING - 100), far(STAGING), part(0, [0, 8], [0, STAGING], 8, 3)]);
        let windows: Vec<_> = work
            .iter()
            .map(|w| match w {
                Work::Together(batch) => batch.window.clone(),
                Work::Alone(t) => t.there.at..0,
            })
            .collect();
        assert_eq!(windows, [0..STAGING, STAGING..STAGING + 100, 0..0]);
    }

    #[test]
    fn a_table_has_five_words_an_entry() {
        let batch = Batch { window: 100..200, ..Batch::default() };
        let table = batch.table(&[part(1, [3, 50], [110, 20], 6, 4)], |t| 1000 * t as u64);
        let words: Vec<u64> = table.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words, [1003, 10, 50, 20, 4 << 32 | 6]);
    }

    #[test]
    fn few_or_large_transfers_are_left_alone() {
        let rows =
            |count, size| (0..count).map(|i| part(0, [2 * i * size, 0], [i * size, 0], size, 1)).collect::<Vec<_>>();
        assert!(is_worth_it(&rows(1000, 512)));
        assert!(!is_worth_it(&rows(300, 512)) && !is_worth_it(&rows(600, SMALL)));
        assert!(is_worth_it(&[part(0, [0, 64], [0, 2], 2, 1000)]), "a rectangle of tiny rows");
    }
}
