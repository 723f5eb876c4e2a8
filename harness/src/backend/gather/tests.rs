//! Batches against a plain map of bytes.

use super::*;
use conform_cases::stream::Stream;

fn part(tensor: usize, here: [usize; 2], there: [usize; 2], size: usize, count: usize) -> Part {
    let place = |[at, stride]: [usize; 2]| Place { at, stride };
    Part { tensor, here: place(here), there: place(there), size, count }
}

/// For each byte of the host's side where it comes from.
fn bytes(parts: &[Part]) -> Vec<(usize, usize, usize)> {
    let each = |p: &Part| {
        let p = *p;
        p.pieces().flat_map(move |(h, t)| (0..p.size).map(move |i| (t + i, p.tensor, h + i)))
    };
    let mut all: Vec<_> = parts.iter().flat_map(each).collect();
    all.sort_unstable();
    all
}

/// What kernels are told, as parts again. A tensor's address is its number times 1 << 40.
fn entries(batch: &Batch) -> Vec<Part> {
    let parts = |(tensor, table): &(usize, Vec<u8>)| {
        let words: Vec<u64> = table.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap())).collect();
        assert_eq!((words.len() / ENTRY, words.len() % ENTRY), (Batch::pieces(table), 0));
        let (tensor, start) = (*tensor, batch.window.start);
        let part = move |w: &[u64]| {
            assert_eq!(w[0] >> 40, tensor as u64);
            let [here, there, h, t, shape] = [w[0] & !(!0 << 40), w[1], w[2], w[3], w[4]].map(|w| w as usize);
            part(tensor, [here, h], [start + there, t], shape & 0xFFFF_FFFF, shape >> 32)
        };
        words.chunks_exact(ENTRY).map(part).collect::<Vec<_>>()
    };
    batch.tables.iter().flat_map(parts).collect()
}

fn addresses() -> Vec<u64> {
    (0..8).map(|i| i << 40).collect()
}

fn batches(together: &Together<'_>) -> Vec<Batch> {
    let mut all = Vec::new();
    together.each(&addresses(), |batch| (all.push(batch.clone()), Ok(())).1).unwrap();
    all
}

fn covered(spans: &[Span]) -> Vec<usize> {
    let runs = |s: &Span| bytes(&[part(0, [0, 0], [s.at, s.stride], s.size, s.count)]);
    let mut all: Vec<usize> = spans.iter().flat_map(runs).map(|(at, ..)| at).collect();
    all.sort_unstable();
    all
}

/// Every byte is moved, once, by entries of the right size; spans have the bytes of their batch and no others.
fn check(gathering: &Gathering, parts: &[Part]) -> usize {
    let together = gathering.together(parts).unwrap();
    let (mut moved, batches) = (Vec::new(), batches(&together));
    for batch in &batches {
        let entries = entries(batch);
        assert!(entries.iter().all(|p| p.bytes() <= CHUNK));
        assert!(batch.window.len() <= together.staging());
        assert!(entries.len() * 8 * ENTRY <= together.tables(), "{} entries", entries.len());
        let bytes = bytes(&entries);
        let there: Vec<usize> = bytes.iter().map(|(at, ..)| *at).collect();
        assert_eq!(covered(&batch.spans), there);
        assert_eq!(batch.window, there[0]..there[there.len() - 1] + 1);
        moved.extend(bytes);
    }
    moved.sort_unstable();
    assert!(moved == bytes(parts), "{parts:?}");
    batches.len()
}

#[test]
fn every_byte_is_moved_once() {
    let mut draw = 0;
    let mut below = |n: usize| {
        draw += 1;
        Stream::new(5, 5).below(draw, n as u64) as usize
    };
    let (mut most, large) = (0, Gathering { staging: 1 << 18, entries: 6, ..Gathering::ALWAYS });
    for round in 0..40 {
        // Parts that do not touch each other on the host's side, some beyond what is moved at once.
        let (mut parts, mut end, gathering) = (Vec::new(), below(100), [Gathering::ALWAYS, large][round % 2]);
        for _ in 0..1 + below(if round % 2 == 0 { 40 } else { 4 }) {
            let sizes = if round % 2 == 0 { [1, 5, 64, 300, 9000] } else { [1, 64, 3000, CHUNK - 9, 3 * CHUNK + 77] };
            let (size, count) = (sizes[below(5)], 1 + below(9));
            let stride = if count > 1 { size + [0, 3, 700][below(3)] } else { 0 };
            let here = if count > 1 { size + below(20) } else { 0 };
            parts.push(part(below(6), [below(50), here], [end, stride], size, count));
            end += count.max(2) * stride.max(size) + [0, 1][below(2)];
        }
        if round % 3 == 0 {
            parts.reverse();
        }
        most = most.max(check(&gathering, &parts));
    }
    assert!(most > 10, "some need many batches");
}

/// A transposed V of so many rows of all cells: one rectangle for each run of cells.
fn transposed(rows: usize, runs: &[usize], element: usize) -> Vec<Part> {
    let (all, mut at) = (runs.iter().sum::<usize>(), 0);
    let of = |run: &usize| {
        let place = |cells: usize, at: usize| [at * element, cells * element];
        at += run;
        part(1, place(3 * all, 2 * (at - run)), place(all, at - run), run * element, rows)
    };
    runs.iter().map(of).collect()
}

#[test]
fn a_cache_is_few_spans() {
    // Rows from anywhere, one after the other in the blob.
    let rows: Vec<Part> = (0..3000).map(|i| part(i / 1000, [7 * (i % 1000), 0], [50 + 4 * i, 0], 4, 1)).collect();
    let together = Gathering::USUAL.together(&rows).unwrap();
    assert!(matches!(together.parts, Cow::Borrowed(_)), "in order as they are");
    let batch = batches(&together).remove(0);
    assert_eq!((&*batch.spans, batch.window), (&[Span { count: 1, stride: 0, at: 50, size: 12_000 }][..], 50..12_050));
    assert_eq!(
        batch.tables.iter().map(|(t, table)| (*t, Batch::pieces(table))).collect::<Vec<_>>(),
        [(0, 1000), (1, 1000), (2, 1000)]
    );
    // A transposed V that needs more than the staging memory: all batches take the same rows of all cells.
    let parts = transposed(90, &[3, 1, 20, 7, 40, 2], 2);
    let gathering = Gathering { staging: 4000, entries: 1000, ..Gathering::ALWAYS };
    let all = batches(&gathering.together(&parts).unwrap());
    assert_eq!(
        all.iter().map(|b| (b.spans.len(), b.window.clone())).collect::<Vec<_>>(),
        [(1, 0..3796), (1, 3796..7592), (1, 7592..11388), (1, 11388..13140)]
    );
    check(&gathering, &parts);
}

/// Pieces that come in turns from the two halves of a blob do not make a batch each.
#[test]
fn order_does_not_matter() {
    let half = |i: usize| 60 * i + 20_000 * (i % 2);
    let parts: Vec<Part> = (0..300).map(|i| part(i % 3, [64 * i, 0], [half(i), 0], 60, 1)).collect();
    let gathering = Gathering { entries: 1000, ..Gathering::ALWAYS };
    assert!(check(&gathering, &parts) <= 6);
}

#[test]
fn batches_overlap_with_the_work_and_end_with_it() {
    let parts: Vec<Part> = (0..2 * OVERLAPPED).map(|i| part(0, [8 * i, 0], [4 * i, 0], 4, 1)).collect();
    for few in [&parts[..], &parts[..100]] {
        assert!(check(&Gathering::ALWAYS, few) > 3);
        let (mut done, together) = (0, Gathering::ALWAYS.together(few).unwrap());
        let why = together.each(&addresses(), |_| {
            done += 1;
            if done == 2 { Err(DeviceError("no".to_owned())) } else { Ok(()) }
        });
        assert_eq!((why.unwrap_err().0, done), ("no".to_owned(), 2));
    }
}

#[test]
fn few_or_large_transfers_are_left_alone() {
    let is_worth_it = |parts: &[Part]| Gathering::USUAL.together(parts).is_some();
    let rows = |count, size| (0..count).map(|i| part(0, [2 * i * size, 0], [i * size, 0], size, 1)).collect::<Vec<_>>();
    assert!(is_worth_it(&rows(1000, 512)));
    assert!(!is_worth_it(&rows(300, 512)) && !is_worth_it(&rows(600, 1 << 18)) && !is_worth_it(&[]));
    assert!(is_worth_it(&[part(0, [0, 64], [0, 2], 2, 1000)]), "a rectangle of tiny rows");
    assert!(!is_worth_it(&[part(0, [0, 256], [0, 128], 128, 1000)]), "one of larger rows is one transfer");
    assert!(Gathering::ALWAYS.together(&[part(0, [0, 0], [0, 0], 0, 1)]).is_none(), "nothing");
}

#[test]
fn errors_name_tensors() {
    let named = |parts: &[Part]| {
        let batch = batches(&Gathering::ALWAYS.together(parts).unwrap()).remove(0);
        batch.failed(DeviceError("no".to_owned()), |t| ["k", "v"][t]).0
    };
    let rows = [part(1, [0, 0], [0, 0], 4, 1), part(0, [0, 0], [4, 0], 4, 1)];
    assert_eq!(named(&rows), "no, moving pieces of v and 1 other tensors");
    assert_eq!(named(&rows[1..]), "no, moving pieces of k");
}
