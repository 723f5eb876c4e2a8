//! What a build is asked to do with a model, and what it leaves behind.
//!
//! Contexts and saved blobs live in the worker for the length of a step and go by small numbers. Every call leaves a
//! record in the step's log, whatever came of it:
//!
//! ```text
//! i64 value, u64 length, bytes
//! ```
//!
//! The value is what the function returned, [`ABSENT`] where this build has no such function.

use serde::{Deserialize, Serialize};

/// The value of a call that this build has no function for.
pub const ABSENT: i64 = i64::MIN;

/// Bytes behind a saved blob that must stay as they were, and what they are.
pub const GUARD: [u8; 64] = [0x5a; 64];

/// One call. Contexts have numbers; those that a call does not open are opened before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case", deny_unknown_fields)]
pub enum Call {
    /// `llama_init_from_model`, with room for [`SEQUENCES`](super::script::SEQUENCES). Value 1. A context that had the number
    /// is freed.
    Open {
        /// Its number.
        context: usize,
        /// ggml's numbers for the types of K and V, unless they are the default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        types: Option<[i32; 2]>,
    },
    /// `llama_decode`. The bytes are the logits after the last token, f32.
    Decode {
        /// Where.
        context: usize,
        /// Of which sequence.
        sequence: i32,
        /// Position of the first token.
        position: i32,
        /// The tokens.
        tokens: Vec<i32>,
    },
    /// `llama_memory_seq_rm`: positions from..to. Value 1 or 0.
    Remove {
        /// Where.
        context: usize,
        /// Of which sequence.
        sequence: i32,
        /// The first position.
        from: i32,
        /// The end; all that follow if negative.
        to: i32,
    },
    /// `llama_memory_seq_cp`, of all positions. Value 1.
    Copy {
        /// Where.
        context: usize,
        /// The sequence.
        from: i32,
        /// What its copy is called.
        to: i32,
    },
    /// `llama_state_get_size` or `llama_state_seq_get_size`.
    Size {
        /// Of which context.
        context: usize,
        /// What of it.
        what: Piece,
    },
    /// `llama_state_get_data` or `llama_state_seq_get_data`, into memory of the size that is asked for first. The bytes are
    /// the blob and a [`GUARD`] behind it.
    Save {
        /// Of which context.
        context: usize,
        /// What of it.
        what: Piece,
        /// The number that the blob goes by.
        blob: usize,
    },
    /// `llama_state_set_data` or `llama_state_seq_set_data`.
    Load {
        /// Into which context.
        context: usize,
        /// What of it.
        what: Piece,
        /// The number of the blob.
        blob: usize,
        /// What is done to it before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        damage: Option<Damage>,
    },
}

/// What is saved or loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    /// Everything.
    Whole,
    /// One sequence.
    Sequence(i32),
    /// One sequence, by the functions that take flags: only what can't be had again by removing positions.
    Partial(i32),
}

/// Damage to a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Damage {
    /// So many bytes are missing at the end; at most all.
    Cut(usize),
    /// A number of 32 bits is another one.
    Word {
        /// Its first byte.
        at: usize,
        /// What is added to it, modulo 2^32.
        add: u32,
    },
}

impl Damage {
    /// The damaged blob.
    pub fn of(self, blob: &[u8]) -> Vec<u8> {
        let mut bytes = blob.to_vec();
        match self {
            Damage::Cut(missing) => bytes.truncate(blob.len().saturating_sub(missing)),
            Damage::Word { at, add } => {
                if let Some(word) = bytes.get_mut(at..at + 4) {
                    let value = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                    word.copy_from_slice(&value.wrapping_add(add).to_le_bytes());
                }
            }
        }
        bytes
    }
}

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// What was returned.
    pub value: i64,
    /// What was written.
    pub bytes: &'a [u8],
}

/// Adds a record to a log, if there is room for it.
pub fn write_record(log: &mut [u8], end: &mut usize, value: i64, bytes: &[u8]) -> Result<(), String> {
    let needed = 16 + bytes.len();
    let room = log.len().saturating_sub(*end);
    let record = log.get_mut(*end..*end + needed);
    let record = record.ok_or_else(|| format!("a record of {needed} bytes, but the log has room for {room}"))?;
    record[..8].copy_from_slice(&value.to_le_bytes());
    record[8..16].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    record[16..].copy_from_slice(bytes);
    *end += needed;
    Ok(())
}

/// The first records of a log; fewer where it ends in the middle of one.
pub fn read_records(mut log: &[u8], calls: usize) -> Vec<Record<'_>> {
    let mut records = Vec::new();
    while records.len() < calls {
        let Some((value, rest)) = log.split_first_chunk() else { break };
        let Some((len, rest)) = rest.split_first_chunk() else { break };
        let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
        let Some((bytes, rest)) = rest.split_at_checked(len) else { break };
        records.push(Record { value: i64::from_le_bytes(*value), bytes });
        log = rest;
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back() {
        let (mut log, mut end) = (vec![0; 64], 0);
        write_record(&mut log, &mut end, -3, &[1, 2]).unwrap();
        write_record(&mut log, &mut end, ABSENT, &[]).unwrap();
        let records = read_records(&log, 2);
        assert_eq!((records[0].value, records[0].bytes, records[1].value), (-3, &[1u8, 2][..], ABSENT));
        assert_eq!(end, 34);
        let why = write_record(&mut log, &mut end, 0, &[0; 15]).unwrap_err();
        assert_eq!(why, "a record of 31 bytes, but the log has room for 30");
        log[8] = 255;
        assert!(read_records(&log, 2).is_empty());
    }

    #[test]
    fn damage() {
        assert_eq!(Damage::Cut(1).of(&[1, 2, 3]), [1, 2]);
        assert!(Damage::Cut(9).of(&[1, 2, 3]).is_empty());
        assert_eq!(Damage::Word { at: 4, add: u32::MAX }.of(&[0, 0, 0, 0, 5, 0, 0, 0]), [0, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(Damage::Word { at: 4, add: 1 }.of(&[0, 0, 0, 0, 5]), [0, 0, 0, 0, 5]);
    }
}
