//! Readers of foreign bytes, and what must hold of them whatever they read. Fuzzers and a test of the corpus drive these.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each program drives one of them, and panics where something is wrong"
)]

use conform_cases::case::Case;
use conform_cases::state::case_type;
use conform_cases::state::container::{Container, Kind};
use conform_cases::state::memory::{Memory, What};
use conform_cases::state::plain::PlainMemory;
use conform_cases::state::stages::Stages;
use conform_harness::report::read;
use peak_alloc::PeakAlloc;

/// Runs a target and sees that it never has more memory in use at once than ten times its input and a megabyte.
pub(crate) fn bounded(memory: &PeakAlloc, input: &[u8], target: fn(&[u8])) {
    memory.reset_peak_usage();
    let before = memory.current_usage();
    target(input);
    let used = memory.peak_usage().saturating_sub(before);
    assert!(used <= 10 * input.len() + (1 << 20), "{used} bytes in use for an input of {}", input.len());
}

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

/// A blob, behind a byte that says of what memory and container and one that says whether it is of one sequence. What is
/// read is written back as it was; what is refused changes nothing.
pub(crate) fn state_blob(input: &[u8]) {
    let [first, second, blob @ ..] = input else { return };
    let (op, params) = MEMORIES[usize::from(*first) % MEMORIES.len()];
    let kind = KINDS[usize::from(*first) / MEMORIES.len() % KINDS.len()];
    let what = if second % 2 == 0 { What::All } else { What::Sequence(1) };
    let is_partial = second / 2 % 2 == 1;
    let start = match kind.map(|kind| Container::read(kind, blob)) {
        None => 0,
        Some(Err(_)) => return,
        Some(Ok((container, start))) => {
            assert_eq!(container.head(), blob[..start]);
            start
        }
    };
    let part = &blob[start..];
    let shape = case_type::shape(op, params).unwrap();
    let (mut memory, mut device) = (Memory::new(&shape, Stages::default()), PlainMemory::new(&shape.tensors()));
    let (memory_before, device_before) = (memory.clone(), device.clone());
    match memory.load(what, is_partial, part, &mut device) {
        Err(_) => assert!(memory.holds_the_same(&memory_before) && device == device_before),
        Ok(()) => {
            let saved = memory.save(what, is_partial, Vec::new(), &mut device).unwrap();
            assert_eq!(saved.len(), part.len());
            // The number of a sequence is that which it was loaded into, and a memory holds its cells in order.
            if what == What::All {
                assert_eq!(saved, part);
            }
        }
    }
}

/// An id: what is read is written as it was, and unfolds.
pub(crate) fn case_id(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(case) = text.parse::<Case>() else { return };
    assert_eq!(case.id(), text);
    let cost = case.body().cost();
    // Describing a case costs what its steps do; bounds of ids let some have many.
    if cost.input_elements < 1 << 12 && case.body().op() != "llama_state" {
        drop(case.plan());
    }
}

/// Both files of a run: a line that is read is written, and read as the same.
pub(crate) fn results(input: &[u8]) {
    let _ = read::head(input);
    for result in read::results(input).flatten() {
        let text = serde_json::to_string(&result).unwrap() + "\n";
        let again = read::results(text.as_bytes()).next();
        assert_eq!(again, Some(Ok(result)));
    }
}
