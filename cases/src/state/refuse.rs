//! Blobs that must be refused: cut, extended, altered where they say how to be read, or of another memory.

use super::annotated::{Annotated, Kind};
use super::io::{StateError, Transfers};
use super::lower::Fault;
use super::memory::{Memory, What};
use super::plain::PlainMemory;
use super::shape::Shape;
use super::stages::Stages;
use crate::formats::ElemType;
use crate::plan::Part;
use crate::stream::Stream;

/// Nothing may be moved through it.
#[derive(Default)]
struct Untouched {
    moved: usize,
}

impl Transfers for Untouched {
    fn fetch(&mut self, _: &mut [u8], parts: &[Part]) -> Result<(), String> {
        self.moved += parts.len();
        Ok(())
    }

    fn upload(&mut self, _: &[u8], parts: &[Part]) -> Result<(), String> {
        self.moved += parts.len();
        Ok(())
    }
}

/// A damaged blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// What was done to it.
    pub how: String,
    /// What is left.
    pub bytes: Vec<u8>,
    /// A cell's count of sequences was altered. The words behind it may then be read as other cells, and if these come
    /// out even the blob is one of another state, which nothing tells from damage.
    pub may_be_another: bool,
}

/// Every kind of damage that a blob must be refused for, `some` of each kind that there are many of.
pub fn damages(blob: &Annotated, some: usize, stream: Stream) -> Vec<Damaged> {
    let mut damages = Vec::new();
    let len = blob.bytes.len();
    let mut add = |how: String, bytes: Vec<u8>| {
        damages.push(Damaged { may_be_another: how.contains(" sequences altered"), how, bytes });
    };
    for i in 0..some.min(len) {
        let cut = if some >= len { i } else { stream.below(i as u64, len as u64) as usize };
        add(format!("cut to {cut} of {len} bytes"), blob.bytes[..cut].to_vec());
    }
    for more in [1, 4] {
        add(format!("extended by {more} bytes"), [blob.bytes.clone(), vec![0; more]].concat());
    }
    let fields: Vec<_> = blob.fields.iter().filter(|f| f.kind == Kind::Structure).collect();
    let step = fields.len().div_ceil(some).max(1);
    let first = stream.at(1).below(0, step as u64) as usize;
    for (i, field) in fields.iter().enumerate().skip(first).step_by(step) {
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        let (value, width) = (word(&blob.bytes[field.range.clone()]), field.range.len());
        let others = [value.wrapping_add(1), value.wrapping_sub(1), 0, u64::MAX, 1 << 31, value ^ 0x0100_0000];
        let chosen = if some >= fields.len() { others.to_vec() } else { vec![others[i % others.len()]] };
        for other in chosen {
            let mut bytes = blob.bytes.clone();
            bytes[field.range.clone()].copy_from_slice(&other.to_le_bytes()[..width]);
            if bytes != blob.bytes {
                add(format!("{} altered from {value} to {}", field.name, word(&bytes[field.range.clone()])), bytes);
            }
        }
    }
    // Positions and sequences may be others, but not any.
    let places: Vec<_> = blob.fields.iter().filter(|f| f.kind == Kind::Place).collect();
    for (i, field) in places.iter().enumerate().step_by(places.len().div_ceil(some).max(1)) {
        let impossible = match field.name.rsplit(' ').next() {
            Some("position") => -1 - i as i32,
            Some("sequence") => i32::MAX - i as i32,
            _ => continue,
        };
        let mut bytes = blob.bytes.clone();
        bytes[field.range.clone()].copy_from_slice(&impossible.to_le_bytes());
        add(format!("{} altered to {impossible}", field.name), bytes);
    }
    damages
}

/// Loads damaged blobs, each of which must be refused, with nothing moved and nothing changed.
pub fn check_damaged(shape: &Shape, memory: &Memory, damaged: &[Damaged]) -> Option<Fault> {
    let fault = |d: &Damaged, what: &str| Some(Fault { check: "refusal", what: format!("a blob {} {what}", d.how) });
    for d in damaged {
        let (mut target, mut device) = (memory.clone(), Untouched::default());
        let answer = target.load(What::All, false, &d.bytes, &mut device);
        match answer {
            Ok(()) if d.may_be_another && is_of_a_state(shape, &d.bytes) => {}
            Ok(()) => return fault(d, "was loaded"),
            Err(StateError::Transfer(_)) => return fault(d, "was refused only when its rows were moved"),
            Err(_) if device.moved > 0 => return fault(d, "was refused after rows had been moved"),
            Err(_) if !target.holds_the_same(memory) => return fault(d, "was refused and changed the memory"),
            Err(_) => {}
        }
    }
    None
}

/// Whether a right engine saves just this blob after it has loaded it.
fn is_of_a_state(shape: &Shape, blob: &[u8]) -> bool {
    let mut memory = Memory::new(shape, Stages::default());
    let mut device = PlainMemory::new(&shape.tensors());
    let loaded = memory.load(What::All, false, blob, &mut device);
    let saved = loaded.and_then(|()| memory.save(What::All, false, Vec::new(), &mut device));
    saved.is_ok_and(|saved| saved == blob)
}

/// Memories that differ from this one in one respect that a blob tells.
pub fn variants(shape: &Shape) -> Vec<(&'static str, Shape)> {
    let other = |ty| if ty == ElemType::F32 { ElemType::F16 } else { ElemType::F32 };
    let mut all: Vec<(&'static str, Shape)> = Vec::new();
    if let Some(kv) = shape.kv {
        let mut add = |what, kv| all.push((what, Shape { kv: Some(kv), ..*shape }));
        let mut with = kv;
        with.streams += 1;
        add("streams", with);
        with = kv;
        with.layers += 1;
        add("layers", with);
        with = kv;
        with.k_type = other(kv.k_type);
        add("type", with);
        with = kv;
        with.v_embd += 32;
        add("row", with);
        with = kv;
        (with.v_trans, with.v_type) = (!kv.v_trans, if kv.v_type.is_blocked() { ElemType::F16 } else { kv.v_type });
        add("transposed", with);
    }
    if let Some(recurrent) = shape.recurrent {
        let mut add = |what, recurrent| all.push((what, Shape { recurrent: Some(recurrent), ..*shape }));
        let mut with = recurrent;
        with.layers += 1;
        add("layers", with);
        with = recurrent;
        with.s_type = other(recurrent.s_type);
        add("type", with);
        with = recurrent;
        with.r_embd += 32;
        add("row", with);
        with = recurrent;
        with.s_trans = !recurrent.s_trans;
        add("transposed", with);
    }
    all
}

/// Loads a blob of one memory into others, which must refuse it, and into an equal one, which must not.
pub fn check_mismatch(shape: &Shape, blob: &[u8], stages: Stages) -> Option<Fault> {
    let fault = |what: String| Some(Fault { check: "mismatch", what });
    for (respect, other) in variants(shape) {
        let mut device = Untouched::default();
        match Memory::new(&other, stages).load(What::All, false, blob, &mut device) {
            Err(StateError::Refused { .. }) if device.moved == 0 => {}
            answer => return fault(format!("a blob of another memory ({respect}) was not refused: {answer:?}")),
        }
    }
    let answer = Memory::new(shape, stages).load(What::All, false, blob, &mut Untouched::default());
    answer.err().and_then(|e| fault(format!("a blob of an equal memory was refused: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::attention::Cell;
    use crate::state::case_type;

    /// Two cells of which the first has sequences 0 and 3, at position 7. With one sequence less, 3 is read as the
    /// position of the next cell and the position of that one as a count.
    fn memory_and_blob(position: i32, sequence: i32) -> (Shape, Memory, Vec<u8>) {
        let shape = case_type::shape("kv_state", "c=4,q=4,l=1,k=32,v=32").unwrap();
        let mut memory = Memory::new(&shape, Stages::default());
        let cells = &mut memory.attention.as_mut().unwrap().streams[0].cells;
        cells[0] = Cell { pos: 7, sequences: [0, 3].into(), ..Cell::default() };
        cells[1] = Cell { pos: position, sequences: [sequence].into(), ..Cell::default() };
        let mut device = PlainMemory::new(&shape.tensors());
        let blob = memory.save(What::All, false, vec![], &mut device).unwrap();
        (shape, memory, blob)
    }

    fn with_one_sequence_less(mut bytes: Vec<u8>, may_be_another: bool) -> Damaged {
        // Streams, cells, position.
        assert_eq!(bytes[12], 2);
        bytes[12] = 1;
        Damaged { how: "altered".to_owned(), bytes, may_be_another }
    }

    #[test]
    fn a_blob_that_became_one_of_another_state_may_be_loaded() {
        // The next cell is at 3 and has 2 sequences, which are 1 (the count of one) and 2.
        let (shape, mut memory, blob) = memory_and_blob(2, 2);
        let other = with_one_sequence_less(blob.clone(), true);
        memory.load(What::All, false, &other.bytes, &mut Untouched::default()).unwrap();
        assert_eq!(check_damaged(&shape, &memory, &[other]), None);
        let known = check_damaged(&shape, &memory, &[with_one_sequence_less(blob, false)]).unwrap();
        assert_eq!(known.what, "a blob altered was loaded");
        // 1 and 0 are out of order.
        let (_, mut memory, blob) = memory_and_blob(2, 0);
        let refused = with_one_sequence_less(blob, true);
        let why = memory.load(What::All, false, &refused.bytes, &mut Untouched::default()).unwrap_err();
        assert_eq!(why.to_string(), "stream 0 cell 1 sequence at byte 32: the blob has 0 after 1");
    }
}
