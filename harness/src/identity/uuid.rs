//! The number that a driver gives to one device.

use std::fmt;
use std::str::FromStr;

/// A UUID of a device, written as drivers do: `8932f937-d72c-4106-c12f-20bd9faed9f6`.
///
/// It is read in any case, with dashes or without, and with the words before it by which NVIDIA tells whole GPUs from
/// parts of one: `GPU-` and `MIG-`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid([u8; 16]);

impl Uuid {
    /// A UUID of its bytes, in the order in which they are written.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Uuid(bytes)
    }

    /// True for zeros, which a driver leaves where it knows none.
    pub fn is_nil(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            let dash = if matches!(i, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// A text that is no UUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no UUID; one looks like 8932f937-d72c-4106-c12f-20bd9faed9f6")]
pub struct NotUuid(String);

impl FromStr for Uuid {
    type Err = NotUuid;

    fn from_str(text: &str) -> Result<Self, NotUuid> {
        parse(text.trim()).ok_or_else(|| NotUuid(text.escape_debug().to_string()))
    }
}

fn parse(text: &str) -> Option<Uuid> {
    let text = without_word(text);
    let is_grouped = text.split('-').map(str::len).eq([8, 4, 4, 4, 12]);
    if !is_grouped && text.contains('-') {
        return None;
    }
    let digits: Vec<u32> = text.chars().filter(|c| *c != '-').map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    if digits.len() != 32 {
        return None;
    }
    // Two digits of four bits make a byte.
    Some(Uuid(std::array::from_fn(|i| (digits[2 * i] << 4 | digits[2 * i + 1]) as u8)))
}

/// The text behind `GPU-` or `MIG-`.
fn without_word(text: &str) -> &str {
    match text.split_at_checked(4) {
        Some((word, rest)) if ["gpu-", "mig-"].contains(&word.to_ascii_lowercase().as_str()) => rest,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: &str = "8932f937-d72c-4106-c12f-20bd9faed9f6";

    #[test]
    fn whatever_prints_it() {
        for text in [
            WRITTEN,
            "8932F937-D72C-4106-C12F-20BD9FAED9F6",
            "8932f937d72c4106c12f20bd9faed9f6",
            "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
            "MIG-8932F937-d72c-4106-c12f-20bd9faed9f6\n",
        ] {
            assert_eq!(text.parse::<Uuid>().unwrap().to_string(), WRITTEN, "{text}");
        }
        assert!(Uuid::from_bytes([0; 16]).is_nil() && !WRITTEN.parse::<Uuid>().unwrap().is_nil());
    }

    #[test]
    fn what_is_none_is_refused() {
        for bad in [
            "",
            "GPU-",
            "GPU-8932f937",
            "8932f937-d72c-4106-c12f-20bd9faed9f",
            "8932f937-d72c-4106-c12f-20bd9faed9f66",
            "8932f937-d72c4106-c12f-20bd9faed9f6",
            "8932f937d72c4106-c12f20bd9faed9f6",
            "g932f937-d72c-4106-c12f-20bd9faed9f6",
            "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0",
            "0000:3b:00.0",
            "é932f937-d72c-4106-c12f-20bd9faed9f6",
        ] {
            assert!(bad.parse::<Uuid>().is_err(), "{bad:?}");
        }
    }
}
