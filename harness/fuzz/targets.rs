//! Readers of foreign bytes, and what must hold of them whatever they read. Fuzzers and a test of the corpus drive these.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each program drives one of them, and panics where something is wrong"
)]

use conform_cases::case::Case;
use conform_cases::state::attention::Cell;
use conform_cases::state::case_type;
use conform_cases::state::container::{Container, Kind};
use conform_cases::state::io::StateError;
use conform_cases::state::memory::{Memory, What};
use conform_cases::state::plain::PlainMemory;
use conform_cases::state::shape::Shape;
use conform_cases::state::stages::Stages;
use conform_harness::report::read;
use peak_alloc::PeakAlloc;

/// Sees that a reader never has more memory in use at once than ten times its input and a megabyte: the most bytes that
/// are allocated and not yet freed at any one time, beyond those from before.
pub(crate) fn bounded<T>(memory: &PeakAlloc, input: &[u8], reader: impl FnOnce() -> T) -> T {
    memory.reset_peak_usage();
    let before = memory.current_usage();
    let read = reader();
    let used = memory.peak_usage().saturating_sub(before);
    assert!(used <= 10 * input.len() + (1 << 20), "{used} bytes in use for an input of {}", input.len());
    read
}

/// A target: the counter of memory, and the input.
pub(crate) type Target = fn(&PeakAlloc, &[u8]);

/// Memories that blobs are read into: op and params of a case id.
const MEMORIES: [(&str, &str); 8] = [
    ("kv_state", "c=8,l=1,k=32,v=32"),
    ("kv_state", "s=3,c=6,q=6,l=2,k=32,v=32,kt=q8_0,vt=q4_0"),
    ("kv_state", "c=8,l=2,k=8,v=6,t=1"),
    ("kv_state", "c=8,q=3,l=1,k=8,v=8,xy=1"),
    ("recurrent_state", "c=5,q=3,l=2,r=6,s=8"),
    ("recurrent_state", "c=5,q=3,l=1,r=6,s=8,t=1"),
    ("hybrid_state", "c=8,q=3,l=1,k=8,v=8,rc=4,rl=1,r=4,rs=6"),
    ("hybrid_state", "c=8,q=3,l=1,k=8,v=8,t=1,rc=4,rl=2,r=4,rs=6,rst=1"),
];

/// What a blob stands in, or nothing.
const KINDS: [Option<Kind>; 5] =
    [None, Some(Kind::Whole), Some(Kind::Sequence), Some(Kind::SessionFile), Some(Kind::SequenceFile)];

/// The sequence that blobs of one are loaded into, and one that must not notice.
const LOADED: i32 = 1;
const OTHER: i32 = 0;

/// A blob, behind a byte that says of what memory and container and one of flags: the blob is of one sequence, it is
/// partial, the memory has something in it already. What is read is written back as it was; what is refused changes
/// nothing.
pub(crate) fn state_blob(meter: &PeakAlloc, input: &[u8]) {
    let [first, flags, blob @ ..] = input else { return };
    let (op, params) = MEMORIES[usize::from(*first) % MEMORIES.len()];
    let kind = KINDS[usize::from(*first) / MEMORIES.len() % KINDS.len()];
    let what = if flags & 1 == 0 { What::All } else { What::Sequence(LOADED) };
    let (is_partial, is_in_use) = (flags & 2 != 0, flags & 4 != 0);
    let start = match kind.map(|kind| bounded(meter, input, || Container::read(kind, blob))) {
        None => 0,
        Some(Err(why)) => return check_error(&why, blob),
        Some(Ok((container, start))) => {
            assert_eq!(container.head(), blob[..start]);
            start
        }
    };
    let part = &blob[start..];
    let shape = case_type::shape(op, params).unwrap();
    let (mut memory, mut device) = if is_in_use { in_use(&shape) } else { empty(&shape) };
    let (memory_before, mut device_before) = (memory.clone(), device.clone());
    let answer = bounded(meter, input, || memory.load(what, is_partial, part, &mut device));
    if let Err(why) = answer {
        assert!(memory.holds_the_same(&memory_before) && device == device_before);
        return check_error(&why, part);
    }
    let saved = memory.save(what, is_partial, Vec::new(), &mut device).unwrap();
    if what == What::All {
        assert_eq!(saved, part);
        return;
    }
    let other = |m: &Memory, d: &mut PlainMemory| m.save(What::Sequence(OTHER), false, Vec::new(), d).unwrap();
    assert_eq!(other(&memory, &mut device), other(&memory_before, &mut device_before));
    assert_eq!(saved.len(), part.len());
    // Where there are holes the cells may lie in another order than in the blob. In an empty memory they do not.
    let as_saved = if is_in_use { saved.clone() } else { renamed(&shape, is_partial, part) };
    assert_eq!(saved, as_saved);
    let (mut again, mut device) = empty(&shape);
    again.load(what, is_partial, &saved, &mut device).unwrap();
    assert_eq!(again.save(what, is_partial, Vec::new(), &mut device).unwrap(), saved);
}

/// An error of a blob names a field of it; nothing that is read moves bytes in vain.
fn check_error(why: &StateError, blob: &[u8]) {
    match why {
        StateError::Refused { field, offset, .. } => assert!(!field.is_empty() && *offset <= blob.len(), "{why}"),
        StateError::NotPossible(what) => assert!(what.starts_with("no room for "), "{why}"),
        StateError::Transfer(_) => panic!("{why}"),
    }
    assert_eq!(why.to_string().lines().count(), 1, "{why}");
}

fn empty(shape: &Shape) -> (Memory, PlainMemory) {
    (Memory::new(shape, Stages::default()), PlainMemory::new(&shape.tensors()))
}

/// A memory with cells of both sequences, some of them shared, holes between them, and rows that are all different.
fn in_use(shape: &Shape) -> (Memory, PlainMemory) {
    let (mut memory, mut device) = empty(shape);
    for (t, tensor) in device.tensors.iter_mut().enumerate() {
        tensor.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7 + t * 31 + 1) as u8);
    }
    if let Some(attention) = &mut memory.attention {
        let cell = |pos| Cell { pos, ..Cell::default() };
        for (sequence, pos) in [(OTHER, 0), (LOADED, 0), (OTHER, 1), (LOADED, 1), (OTHER, 2)] {
            attention.append(sequence, &[cell(pos)]).unwrap();
        }
        attention.remove(OTHER, 1, 2);
        if shape.kv.is_some_and(|kv| kv.streams == 1) {
            attention.streams[0].cells[0].sequences.insert(LOADED);
        }
    }
    if let Some(recurrent) = &mut memory.recurrent {
        recurrent.advance(OTHER, 2).unwrap();
        // Its rows have yet to be copied from those of the other.
        recurrent.fork(OTHER, LOADED).unwrap();
    }
    (memory, device)
}

/// The blob of one sequence as it is saved again: in the stream and with the number of that which it was loaded into.
fn renamed(shape: &Shape, is_partial: bool, part: &[u8]) -> Vec<u8> {
    let Some(kv) = shape.kv.filter(|_| !(is_partial && shape.recurrent.is_some())) else { return part.to_vec() };
    let word = |at: usize| u32::from_le_bytes(part[at..at + 4].try_into().unwrap()) as usize;
    let target = LOADED as usize % kv.streams;
    let Some(source) = (0..kv.streams).find(|s| word(4 + 4 * s) > 0) else { return part.to_vec() };
    let (body, after) = (8 + 4 * source, part.len() - 4 * (kv.streams - 1 - source));
    // A hybrid has one stream, so that nothing of its other part is moved.
    let mut blob = [&part[..4], &vec![0; 4 * target], &part[body - 4..after]].concat();
    let (cells, cell) = (8 + 4 * target, if kv.has_xy { 20 } else { 12 });
    for number in (0..word(body - 4)).map(|i| cells + (i + 1) * cell - 4) {
        blob[number..number + 4].copy_from_slice(&LOADED.to_le_bytes());
    }
    blob.resize(part.len(), 0);
    blob
}

/// An id: what is read is written as it was, and unfolds.
pub(crate) fn case_id(meter: &PeakAlloc, input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(case) = bounded(meter, input, || text.parse::<Case>()) else { return };
    assert_eq!(case.id(), text);
    let cost = case.body().cost();
    // Describing a case costs what its steps do; bounds of ids let some have many. A model's file is a megabyte.
    if cost.input_elements < 1 << 12 && case.body().op() != "llama_state" {
        bounded(meter, input, || drop(case.plan()));
    }
}

/// Both files of a run: a line that is read is written, and read as the same.
pub(crate) fn results(meter: &PeakAlloc, input: &[u8]) {
    drop(bounded(meter, input, || read::head(input)));
    bounded(meter, input, || read::results(input).for_each(drop));
    for result in read::results(input).flatten() {
        let text = serde_json::to_string(&result).unwrap() + "\n";
        let again = read::results(text.as_bytes()).next();
        assert_eq!(again, Some(Ok(result)));
    }
}
