//! A blob whose every byte has a name.

use std::fmt;
use std::ops::Range;

/// What the bytes of a field say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// How the rest is to be read: a magic, count, type, size, length or flag.
    Structure,
    /// Where a row belongs: a position or a sequence.
    Place,
    /// The rows themselves.
    Payload,
}

/// Neighbouring bytes that mean one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Where they lie.
    pub range: Range<usize>,
    /// What they mean.
    pub name: String,
    /// What kind of thing that is.
    pub kind: Kind,
}

/// Bytes with their fields, in order and without gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotated {
    /// The blob.
    pub bytes: Vec<u8>,
    /// Its fields.
    pub fields: Vec<Field>,
}

impl Annotated {
    /// Adds a field.
    pub fn put(&mut self, kind: Kind, name: impl Into<String>, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.fields.push(Field { range: start..self.bytes.len(), name: name.into(), kind });
    }

    /// The name of a byte, with its place in the field.
    pub fn describe(&self, byte: usize) -> String {
        let field = self.fields.iter().find(|f| f.range.contains(&byte));
        match field {
            Some(f) if f.range.len() > 8 => format!("{}, byte {} of {}", f.name, byte - f.range.start, f.range.len()),
            Some(f) => f.name.clone(),
            None => format!("behind the end at {}", self.bytes.len()),
        }
    }
}

/// One line a field: offset, name, and the number that it is; of rows the first bytes.
impl fmt::Display for Annotated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for field in &self.fields {
            let bytes = &self.bytes[field.range.clone()];
            let value = match (field.kind, bytes.len()) {
                (Kind::Payload, _) => {
                    let start: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
                    let more = if bytes.len() > 8 { " …" } else { "" };
                    format!("{}{more} ({} bytes)", start.join(" "), bytes.len())
                }
                (_, 4) => i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).to_string(),
                (_, 8) => bytes.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b)).to_string(),
                _ => format!("{bytes:02x?}"),
            };
            writeln!(f, "{:6}  {:<32} {value}", field.range.start, field.name)?;
        }
        Ok(())
    }
}
