//! What our own reader and writer make of a build's blobs.
//!
//! Blobs are those of August 2026, and as far back as little differs: a sequence without a magic (before May 2026), outputs
//! between a whole state's name and its memory (before 2026), no count of streams (before July 2025).
//!
//! ```text
//! outputs: u32 count, i32 place..., u64 logits, f32..., u64 embeddings, f32...
//! ```

use super::calls::Piece;
use super::script::{CELLS, SEQUENCES};
use super::weights::{Arch, Cache, Variant};
use crate::state::attention::Attention;
use crate::state::container::{Container, Kind};
use crate::state::io::{MemoryReader, MemoryWriter, StateError};
use crate::state::memory::What;
use crate::state::plain::PlainMemory;
use crate::state::recurrent::Recurrent;
use crate::state::stages::Stages;

/// Why a blob was not read.
pub(super) struct Unread {
    /// One line.
    pub(super) why: String,
    /// A field that says how to read the rest, and not whose a row is.
    pub(super) is_structure: bool,
    /// How far it was read.
    at: usize,
}

impl Unread {
    /// Offsets in the error are counted from `start`, the memory's first byte.
    fn new(e: StateError, start: usize) -> Self {
        let StateError::Refused { field, offset, what } = e else {
            return Unread { why: e.to_string(), is_structure: true, at: start };
        };
        // With another count of sequences what follows may be read as other cells, and come out even.
        let is_structure = !["position", "sequence", "sequences"].iter().any(|place| field.ends_with(place));
        let at = start + offset;
        Unread { why: StateError::Refused { field, offset: at, what }.to_string(), is_structure, at }
    }
}

/// A blob that was read and written again. Of several readings that fail, the one that comes furthest says why.
pub(super) fn read_back(variant: Variant, piece: Piece, blob: &[u8]) -> Result<Vec<u8>, Unread> {
    let (kind, what) = match piece {
        Piece::Whole => (Kind::Whole, What::All),
        Piece::Sequence(sequence) | Piece::Partial(sequence) => (Kind::Sequence, What::Sequence(sequence)),
    };
    let is_partial = matches!(piece, Piece::Partial(_));
    let mut why: Option<Unread> = None;
    for (start, counts_streams) in starts(variant.arch, kind, blob)? {
        let (head, part) = blob.split_at(start);
        // What an old build leaves out is put before its memory, and taken away again.
        let streams = 1u32.to_le_bytes();
        let added = if counts_streams { &[][..] } else { &streams };
        let part = [added, part].concat();
        // Before late 2025 a partial state of a hybrid had everything.
        let readings = [false, true].map(|v_trans| caches(variant, &part, v_trans));
        let wholly = |of: &Vec<Cache>| of.clone();
        let partly = |of: &Vec<Cache>| of[of.len() - 1..].to_vec();
        let tried: Vec<Vec<Cache>> = match is_partial {
            false => readings.iter().map(wholly).collect(),
            true if start > 0 => readings.iter().map(partly).collect(),
            true => readings.iter().map(partly).chain(readings.iter().map(wholly)).collect(),
        };
        for caches in tried {
            match through(&caches, what, &part) {
                Ok(back) => return Ok([head, &back[added.len()..]].concat()),
                Err(e) => {
                    let e = Unread::new(e, start.saturating_sub(added.len()));
                    if why.as_ref().is_none_or(|why| why.at < e.at) {
                        why = Some(e);
                    }
                }
            }
        }
    }
    // There is always a first reading.
    Err(why.unwrap_or_else(|| Unread { why: "no memory".to_owned(), is_structure: true, at: 0 }))
}

/// Where a memory's part may begin, and whether it begins with a count of streams.
fn starts(arch: Arch, kind: Kind, blob: &[u8]) -> Result<Vec<(usize, bool)>, Unread> {
    let mut starts = match (kind, Container::read(kind, blob)) {
        (_, Ok((Container::Whole { architecture }, _))) if architecture != arch.name() => {
            let why = format!("the blob is of '{architecture}', the model of '{}'", arch.name());
            return Err(Unread { why, is_structure: true, at: 0 });
        }
        (Kind::Whole, Ok((_, start))) => [Some(start), outputs_end(blob, start)].into_iter().flatten().collect(),
        (_, Ok((_, start))) => vec![start],
        (Kind::Sequence, Err(_)) => vec![0],
        (_, Err(e)) => return Err(Unread::new(e, 0)),
    };
    let has_streams = |arch| arch != Arch::Mamba;
    let mut both: Vec<(usize, bool)> = starts.iter().map(|start| (*start, true)).collect();
    // Only behind what else is old.
    if has_streams(arch) && starts.last().is_some_and(|last| *last == 0 || starts.len() > 1) {
        both.extend(starts.drain(..).map(|start| (start, false)));
    }
    Ok(both)
}

/// The end of the outputs that begin here.
fn outputs_end(blob: &[u8], start: usize) -> Option<usize> {
    let number = |at: usize, len: usize| {
        let bytes = blob.get(at..at.checked_add(len)?)?;
        let value = bytes.iter().rev().try_fold(0usize, |value, b| value.checked_mul(256)?.checked_add((*b).into()));
        value.filter(|value| *value <= blob.len())
    };
    let logits = start + 4 + 4 * number(start, 4)?;
    let embeddings = logits + 8 + 4 * number(logits, 8)?;
    let end = embeddings + 8 + 4 * number(embeddings, 8)?;
    (end <= blob.len()).then_some(end)
}

/// What stands in a blob, one behind the other. Streams stand in it; whether V is transposed depends on the build.
fn caches(variant: Variant, part: &[u8], v_trans: bool) -> Vec<Cache> {
    let first = part.first_chunk().map_or(0, |word| u32::from_le_bytes(*word) as usize);
    let streams = if (1..=SEQUENCES).contains(&first) { first } else { 1 };
    variant.caches(streams, CELLS, SEQUENCES, v_trans)
}

enum Loaded {
    Attention(Attention),
    Recurrent(Recurrent),
}

/// Loads a memory's part into empty caches, and saves them.
fn through(caches: &[Cache], what: What, part: &[u8]) -> Result<Vec<u8>, StateError> {
    let stages = Stages::default();
    let (mut reader, mut writer) = (MemoryReader::new(part), MemoryWriter::default());
    let (mut tensors, mut loaded) = (Vec::new(), Vec::new());
    for cache in caches {
        match cache {
            Cache::Kv(shape) => {
                let mut cache = Attention::new(*shape, tensors.len());
                let pending = cache.load(what, &mut reader, &stages)?;
                cache.commit(pending);
                tensors.extend(cache.tensors.clone());
                loaded.push(Loaded::Attention(cache));
            }
            Cache::Recurrent(shape) => {
                let mut cache = Recurrent::new(*shape, tensors.len());
                let pending = cache.load(what, &mut reader, &stages)?;
                cache.commit(pending);
                tensors.extend(cache.tensors.clone());
                loaded.push(Loaded::Recurrent(cache));
            }
        }
    }
    reader.end()?;
    let mut device = PlainMemory::new(&tensors);
    reader.finish(&mut device)?;
    for cache in &loaded {
        match cache {
            Loaded::Attention(cache) => cache.save(what, &mut writer, &stages),
            Loaded::Recurrent(cache) => cache.save(what, &mut writer, &stages),
        }
    }
    writer.finish(&mut device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::ElemType;
    use crate::state::attention::Cell;

    /// The memory's part of a build with two sequences, written by our own engine.
    fn part(variant: Variant, what: What, streams: usize, kept: usize) -> Vec<u8> {
        let stages = Stages::default();
        let (mut writer, mut tensors) = (MemoryWriter::default(), Vec::new());
        for cache in &variant.caches(streams, CELLS, SEQUENCES, false)[kept..] {
            match cache {
                Cache::Kv(shape) => {
                    let mut cache = Attention::new(*shape, tensors.len());
                    for sequence in 0..2 {
                        let cells: Vec<Cell> = (0..3).map(|pos| Cell { pos, ..Cell::default() }).collect();
                        cache.append(sequence, &cells).unwrap();
                    }
                    cache.save(what, &mut writer, &stages);
                    tensors.extend(cache.tensors);
                }
                Cache::Recurrent(shape) => {
                    let mut cache = Recurrent::new(*shape, tensors.len());
                    (0..2).for_each(|sequence| _ = cache.advance(sequence, 2).unwrap());
                    cache.save(what, &mut writer, &stages);
                    tensors.extend(cache.tensors);
                }
            }
        }
        let mut device = PlainMemory::new(&tensors);
        device.tensors.iter_mut().flatten().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8);
        writer.finish(&mut device).unwrap()
    }

    /// A piece with what stands before it.
    fn blob(variant: Variant, piece: Piece) -> Vec<u8> {
        let name = variant.arch.name().to_owned();
        match piece {
            Piece::Whole => [Container::Whole { architecture: name }.head(), part(variant, What::All, 4, 0)].concat(),
            Piece::Sequence(sequence) | Piece::Partial(sequence) => {
                let kept =
                    if matches!(piece, Piece::Partial(_)) { variant.caches(4, 1, 1, false).len() - 1 } else { 0 };
                [Container::Sequence { sequence }.head(), part(variant, What::Sequence(sequence), 4, kept)].concat()
            }
        }
    }

    fn refused(variant: Variant, piece: Piece, blob: &[u8]) -> String {
        read_back(variant, piece, blob).map(|_| ()).map_err(|e| e.why).unwrap_err()
    }

    #[test]
    fn what_builds_write_is_read() {
        let types = [ElemType::F32, ElemType::Bf16];
        let variants = Arch::ALL.iter().map(|arch| Variant::of(*arch));
        for variant in variants.chain([Variant { arch: Arch::Window, types }]) {
            for piece in [Piece::Whole, Piece::Sequence(1), Piece::Partial(1)] {
                let blob = blob(variant, piece);
                assert!(read_back(variant, piece, &blob).is_ok_and(|back| back == blob), "{variant:?} {piece:?}");
                refused(variant, piece, &blob[..blob.len() - 1]);
                refused(variant, piece, &[&blob[..], &[0]].concat());
            }
        }
    }

    #[test]
    fn older_blobs_are_read() {
        let variant = Variant::of(Arch::Moe);
        let whole = blob(variant, Piece::Whole);
        let (name, memory) = whole.split_at(4 + "llama".len());
        // Two places, one logit, no embedding.
        let outputs: Vec<u8> = [2, 0, 1, 1, 0, 7, 0, 0].iter().flat_map(|n: &u32| n.to_le_bytes()).collect();
        let sequence = part(variant, What::Sequence(1), 1, 0);
        let old = [
            (Piece::Whole, [name, &outputs, memory].concat()),
            (Piece::Whole, [name, &outputs, &part(variant, What::All, 1, 0)[4..]].concat()),
            (Piece::Sequence(1), sequence.clone()),
            (Piece::Sequence(1), sequence[4..].to_vec()),
        ];
        for (i, (piece, blob)) in old.iter().enumerate() {
            assert!(read_back(variant, *piece, blob).is_ok_and(|back| back == *blob), "{i}");
            refused(variant, *piece, &blob[..blob.len() - 1]);
        }
        // A partial state of a hybrid that has everything.
        let (variant, piece) = (Variant::of(Arch::Hybrid), Piece::Partial(1));
        assert!(read_back(variant, piece, &part(variant, What::Sequence(1), 4, 0)).is_ok());
        let new = [Container::Sequence { sequence: 1 }.head(), part(variant, What::Sequence(1), 4, 0)].concat();
        refused(variant, piece, &new);
        // Nothing is left out today.
        let (variant, piece) = (Variant::of(Arch::Moe), Piece::Sequence(1));
        refused(variant, piece, &[Container::Sequence { sequence: 1 }.head(), sequence[4..].to_vec()].concat());
    }

    #[test]
    fn the_reading_that_comes_furthest_says_why() {
        let variant = Variant::of(Arch::Llama);
        let mut whole = blob(variant, Piece::Whole);
        assert!(
            refused(Variant::of(Arch::Mamba), Piece::Whole, &whole).contains("is of 'llama', the model of 'mamba'")
        );
        whole.truncate(whole.len() - 1);
        let why = "stream 3 cells at byte 1745: needs 4 bytes, the blob has 3 more";
        assert_eq!(refused(variant, Piece::Whole, &whole), why);
        let mut one = blob(variant, Piece::Sequence(1));
        one[16] += 1;
        let why = "stream 1 cell 3 sequences at byte 60: has 2, must be exactly one in the blob of one sequence";
        assert_eq!(refused(variant, Piece::Sequence(1), &one), why);
        // What says how to read the rest must be refused by anyone; whose a row is may be anybody's.
        let is_structure =
            |blob: &[u8]| read_back(variant, Piece::Sequence(1), blob).map(|_| ()).unwrap_err().is_structure;
        assert!(!is_structure(&one));
        one[16] -= 1;
        one.truncate(one.len() - 1);
        assert!(is_structure(&one));
    }
}
