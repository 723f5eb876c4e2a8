//! What stands before a memory's part: in memory, and in files.
//!
//! ```text
//! whole state:    u32 length, the architecture's name, memory
//! one sequence:   u32 0xaf143cd8, i32 sequence, memory          (before May 2026 the memory alone)
//! session file:   u32 0x6767736e, u32 9, u32 tokens, i32 token..., whole state
//! sequence file:  u32 0x67677371, u32 2, u32 tokens, i32 token..., one sequence
//! ```

use super::blob::Numbers;
use super::io::{MemoryReader, StateError, StateRead, refused};

/// Begins one sequence in memory.
const SEQUENCE: u32 = 0xaf14_3cd8;

/// Begins a session file, and its version.
const SESSION_FILE: [u32; 2] = [0x6767_736e, 9];

/// Begins a sequence file, and its version.
const SEQUENCE_FILE: [u32; 2] = [0x6767_7371, 2];

/// Longest name of an architecture that is believed.
const MOST_NAME: usize = 64;

/// What a memory's part stands in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Container {
    /// The state of a context.
    Whole {
        /// Name of the model's architecture.
        architecture: String,
    },
    /// One sequence.
    Sequence {
        /// Its number.
        sequence: i32,
    },
    /// A file with a context's state, and the tokens that led to it.
    SessionFile {
        /// The tokens.
        tokens: Vec<i32>,
        /// Name of the model's architecture.
        architecture: String,
    },
    /// A file with one sequence, and its tokens.
    SequenceFile {
        /// The tokens.
        tokens: Vec<i32>,
        /// Its number.
        sequence: i32,
    },
}

/// Which container is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`Container::Whole`].
    Whole,
    /// [`Container::Sequence`].
    Sequence,
    /// [`Container::SessionFile`].
    SessionFile,
    /// [`Container::SequenceFile`].
    SequenceFile,
}

impl Container {
    /// The bytes before the memory's part.
    pub fn head(&self) -> Vec<u8> {
        let numbers = |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
        let file = |head: [u32; 2], tokens: &[i32]| {
            let tokens: Vec<u32> = tokens.iter().map(|t| t.cast_unsigned()).collect();
            numbers(&[&head[..], &[tokens.len() as u32], &tokens].concat())
        };
        let whole = |name: &str| [numbers(&[name.len() as u32]), name.as_bytes().to_vec()].concat();
        let one = |sequence: i32| numbers(&[SEQUENCE, sequence.cast_unsigned()]);
        match self {
            Container::Whole { architecture } => whole(architecture),
            Container::Sequence { sequence } => one(*sequence),
            Container::SessionFile { tokens, architecture } => {
                [file(SESSION_FILE, tokens), whole(architecture)].concat()
            }
            Container::SequenceFile { tokens, sequence } => [file(SEQUENCE_FILE, tokens), one(*sequence)].concat(),
        }
    }

    /// Reads what stands before a memory's part; the number is where that begins.
    pub fn read(kind: Kind, blob: &[u8]) -> Result<(Self, usize), StateError> {
        let mut reader = MemoryReader::new(blob);
        let from: &mut dyn StateRead = &mut reader;
        let container = match kind {
            Kind::Whole => Container::Whole { architecture: read_name(from)? },
            Kind::Sequence => Container::Sequence { sequence: read_sequence(from)? },
            Kind::SessionFile => {
                let tokens = read_tokens(from, SESSION_FILE, blob.len())?;
                Container::SessionFile { tokens, architecture: read_name(from)? }
            }
            Kind::SequenceFile => {
                let tokens = read_tokens(from, SEQUENCE_FILE, blob.len())?;
                Container::SequenceFile { tokens, sequence: read_sequence(from)? }
            }
        };
        Ok((container, from.bytes()))
    }
}

fn read_name(from: &mut dyn StateRead) -> Result<String, StateError> {
    let field = || "architecture".to_owned();
    let at = from.bytes();
    let len = from.u32(&|| "length of the architecture's name".to_owned())? as usize;
    if !(1..=MOST_NAME).contains(&len) {
        let what = format!("the blob has {len}, a name has 1 to {MOST_NAME} bytes");
        return Err(refused(|| "length of the architecture's name".to_owned(), at, what));
    }
    let at = from.bytes();
    let name = from.read(&field, len)?.to_vec();
    let is_name = |b: &u8| b.is_ascii_alphanumeric() || b"-_.".contains(b);
    match String::from_utf8(name) {
        Ok(name) if name.bytes().all(|b| is_name(&b)) => Ok(name),
        _ => Err(refused(field, at, "is no name: a letter, digit, '-', '_' or '.' each")),
    }
}

fn read_sequence(from: &mut dyn StateRead) -> Result<i32, StateError> {
    expect_magic(from, "magic of a sequence", SEQUENCE)?;
    let at = from.bytes();
    let field = || "sequence".to_owned();
    match from.i32(&field)? {
        sequence @ 0.. => Ok(sequence),
        sequence => Err(refused(field, at, format!("{sequence} is no sequence"))),
    }
}

fn read_tokens(from: &mut dyn StateRead, [magic, version]: [u32; 2], len: usize) -> Result<Vec<i32>, StateError> {
    expect_magic(from, "magic of the file", magic)?;
    from.expect_u32(&|| "version of the file".to_owned(), version)?;
    // No more than the file has room for.
    let count = from.at_most(&|| "tokens".to_owned(), (len - from.bytes()) / 4, "room for tokens")?;
    (0..count).map(|i| from.i32(&|| format!("token {i}"))).collect()
}

fn expect_magic(from: &mut dyn StateRead, field: &str, want: u32) -> Result<(), StateError> {
    let at = from.bytes();
    let got = from.u32(&|| field.to_owned())?;
    if got == want {
        return Ok(());
    }
    Err(refused(|| field.to_owned(), at, format!("the blob has {got:#010x}, must be {want:#010x}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<(Kind, Container)> {
        let (tokens, architecture) = (vec![5, -1, 7], "llama".to_owned());
        vec![
            (Kind::Whole, Container::Whole { architecture: architecture.clone() }),
            (Kind::Sequence, Container::Sequence { sequence: 3 }),
            (Kind::SessionFile, Container::SessionFile { tokens: tokens.clone(), architecture }),
            (Kind::SequenceFile, Container::SequenceFile { tokens, sequence: 0 }),
        ]
    }

    #[test]
    fn heads_are_those_of_the_formats() {
        let hex = |c: &Container| c.head().iter().map(|b| format!("{b:02x}")).collect::<String>();
        let all: Vec<String> = all().iter().map(|(_, c)| hex(c)).collect();
        assert_eq!(all[0], "050000006c6c616d61");
        assert_eq!(all[1], "d83c14af03000000");
        assert_eq!(all[2], "6e736767090000000300000005000000ffffffff07000000050000006c6c616d61");
        assert_eq!(all[3], "71736767020000000300000005000000ffffffff07000000d83c14af00000000");
    }

    #[test]
    fn every_head_round_trips_and_no_damaged_one_passes() {
        for (kind, container) in all() {
            let head = container.head();
            let blob = [head.clone(), b"memory".to_vec()].concat();
            assert_eq!(Container::read(kind, &blob), Ok((container, head.len())));
            for cut in 0..head.len() {
                let why = Container::read(kind, &head[..cut]).unwrap_err().to_string();
                assert!(why.contains(" at byte ") && why.contains("the blob has"), "{why}");
            }
        }
        let why = |kind, change: fn(&mut Vec<u8>)| {
            let (_, container) = all().into_iter().find(|(k, _)| *k == kind).unwrap();
            let mut head = container.head();
            change(&mut head);
            Container::read(kind, &head).unwrap_err().to_string()
        };
        assert_eq!(
            why(Kind::Sequence, |h| h[0] ^= 1),
            "magic of a sequence at byte 0: the blob has 0xaf143cd9, must be 0xaf143cd8"
        );
        assert!(why(Kind::Sequence, |h| h[7] = 0x80).contains("is no sequence"));
        assert!(why(Kind::SessionFile, |h| h[4] = 8).contains("version of the file at byte 4: the blob has 8"));
        assert!(why(Kind::SessionFile, |h| h[11] = 0x40).contains("tokens at byte 8"));
        assert!(why(Kind::Whole, |h| h[3] = 1).contains("a name has 1 to 64 bytes"));
        assert!(why(Kind::Whole, |h| h[4] = 0).contains("is no name"));
    }
}
