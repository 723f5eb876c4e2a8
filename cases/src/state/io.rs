//! The interfaces that state is written and read through.
//!
//! Bytes that the host knows are written and read at once. Rows of tensors are
//! not: a writer or reader in memory records them, and moves all of them
//! together when it is finished, so that a device can queue them. That end is
//! explicit and can fail; a writer or reader that is dropped without it has
//! moved nothing, and the target is as it was.

use crate::plan::Part;

/// Why state can't be written or read: one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A blob says something that can't be so, here.
    #[error("{field} at byte {offset}: {what}")]
    Refused {
        /// The field, with what it belongs to.
        field: String,
        /// Where it stands in the blob.
        offset: usize,
        /// What is wrong, with both values where two differ.
        what: String,
    },
    /// The memory has no room, or is not in a state to do this.
    #[error("{0}")]
    NotPossible(String),
    /// Moving bytes failed half-way: what they were moved to is not valid any more.
    #[error("transfer failed, the state is not valid any more: {0}")]
    Transfer(String),
}

/// Where state is written to.
pub trait StateWrite {
    /// Bytes that the host knows.
    fn write(&mut self, bytes: &[u8]);

    /// Pieces of a tensor. `part.there` is relative to the next byte of the blob.
    fn write_tensor(&mut self, part: Part);

    /// Leaves room for what pieces of tensors fill.
    fn advance(&mut self, bytes: usize);

    /// Bytes so far.
    fn bytes(&self) -> usize;
}

/// Where state is read from.
pub trait StateRead {
    /// The next bytes, for the host. `field` names them in errors.
    fn read(&mut self, field: &dyn Fn() -> String, len: usize) -> Result<&[u8], StateError>;

    /// Pieces of a tensor. `part.there` is relative to the next byte of the blob.
    fn read_tensor(&mut self, part: Part);

    /// Skips what pieces of tensors were read from.
    fn advance(&mut self, field: &dyn Fn() -> String, len: usize) -> Result<(), StateError>;

    /// Bytes so far.
    fn bytes(&self) -> usize;

    /// Bytes that follow: more than they justify is not allocated, whatever a count says.
    fn left(&self) -> usize;
}

/// What moves the bytes of tensors: a device, or something that takes its place.
pub trait Transfers {
    /// Reads all pieces into a blob, and waits for them.
    fn fetch(&mut self, blob: &mut [u8], parts: &[Part]) -> Result<(), String>;

    /// Writes all pieces of a blob to tensors, and waits for them.
    fn upload(&mut self, blob: &[u8], parts: &[Part]) -> Result<(), String>;
}

/// Counts only: how large a buffer must be.
#[derive(Debug, Default)]
pub struct Counter {
    bytes: usize,
}

impl StateWrite for Counter {
    fn write(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len();
    }

    fn write_tensor(&mut self, _: Part) {}

    fn advance(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Writes into memory.
#[derive(Debug, Default)]
#[must_use = "nothing is moved before it is finished"]
pub struct MemoryWriter {
    blob: Vec<u8>,
    parts: Vec<Part>,
}

impl MemoryWriter {
    /// Writes into a buffer that may have held something else. Nothing of that is kept.
    pub fn reusing(mut blob: Vec<u8>) -> Self {
        blob.clear();
        MemoryWriter { blob, parts: Vec::new() }
    }

    /// Moves the bytes of tensors, and gives the blob.
    pub fn finish(mut self, device: &mut dyn Transfers) -> Result<Vec<u8>, StateError> {
        device.fetch(&mut self.blob, &self.parts).map_err(StateError::Transfer)?;
        Ok(self.blob)
    }
}

impl StateWrite for MemoryWriter {
    fn write(&mut self, bytes: &[u8]) {
        self.blob.extend_from_slice(bytes);
    }

    fn write_tensor(&mut self, mut part: Part) {
        part.there.at += self.blob.len();
        self.parts.push(part);
    }

    fn advance(&mut self, bytes: usize) {
        self.blob.resize(self.blob.len() + bytes, 0);
    }

    fn bytes(&self) -> usize {
        self.blob.len()
    }
}

/// Reads from memory.
#[derive(Debug)]
#[must_use = "nothing is moved before it is finished"]
pub struct MemoryReader<'a> {
    blob: &'a [u8],
    at: usize,
    parts: Vec<Part>,
}

impl<'a> MemoryReader<'a> {
    /// Reads a blob from its start.
    pub fn new(blob: &'a [u8]) -> Self {
        MemoryReader { blob, at: 0, parts: Vec::new() }
    }

    /// Refuses what is left over.
    pub fn end(&self) -> Result<(), StateError> {
        match self.left() {
            0 => Ok(()),
            more => Err(refused(|| "end".to_owned(), self.at, format!("{more} bytes follow the state"))),
        }
    }

    /// Moves the bytes of tensors. After an error the tensors hold some of the blob and some of what they held before.
    pub fn finish(self, device: &mut dyn Transfers) -> Result<(), StateError> {
        device.upload(self.blob, &self.parts).map_err(StateError::Transfer)
    }

    fn take(&mut self, field: &dyn Fn() -> String, len: usize) -> Result<&'a [u8], StateError> {
        let left = self.left();
        if len > left {
            let what = format!("needs {len} bytes, the blob has {left} more");
            return Err(refused(field, self.at, what));
        }
        let bytes = &self.blob[self.at..self.at + len];
        self.at += len;
        Ok(bytes)
    }
}

impl StateRead for MemoryReader<'_> {
    fn read(&mut self, field: &dyn Fn() -> String, len: usize) -> Result<&[u8], StateError> {
        self.take(field, len)
    }

    fn read_tensor(&mut self, mut part: Part) {
        part.there.at += self.at;
        self.parts.push(part);
    }

    fn advance(&mut self, field: &dyn Fn() -> String, len: usize) -> Result<(), StateError> {
        self.take(field, len).map(|_| ())
    }

    fn bytes(&self) -> usize {
        self.at
    }

    fn left(&self) -> usize {
        self.blob.len() - self.at
    }
}

/// A refusal of the field at an offset.
pub(super) fn refused(field: impl Fn() -> String, offset: usize, what: impl Into<String>) -> StateError {
    StateError::Refused { field: field(), offset, what: what.into() }
}
