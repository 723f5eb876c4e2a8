//! Element types and block formats: how stored bytes mean numbers.
//!
//! Everything stored is little-endian on every host. A row of a tensor is a
//! whole number of blocks; unblocked types are blocks of one element. Weights
//! decode exactly to f64: an element is `w = p + o`, where `o` is the part a
//! device may multiply separately (zero for every type that exists so far, so
//! only `w` is returned; types with an offset part get a second output here).

mod mxfp4;
mod q4_0;
mod q8_0;

use half::f16;
use serde::{Deserialize, Serialize};

pub use mxfp4::{E2M1, decode_scale as mxfp4_scale};

/// Type of the elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElemType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// 32 values: f16 scale `d`, then 16 bytes of codes; value = d·(code − 8).
    #[serde(rename = "q4_0")]
    Q4_0,
    /// 32 values: f16 scale `d`, then 32 signed bytes; value = d·code.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// 32 values: e8m0 scale byte, then 16 bytes of e2m1 codes (OCP Microscaling Formats 1.0).
    Mxfp4,
    /// Signed 32-bit integer: ids and sort indices.
    I32,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
}

impl ElemType {
    /// Every type, in a fixed order.
    pub const ALL: [ElemType; 9] =
        [Self::F32, Self::F16, Self::Q4_0, Self::Q8_0, Self::Mxfp4, Self::I32, Self::U16, Self::U32, Self::U64];

    /// The types a weight tensor may have.
    pub const WEIGHTS: [ElemType; 5] = [Self::F32, Self::F16, Self::Q4_0, Self::Q8_0, Self::Mxfp4];

    /// The name used in case ids.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q4_0 => "q4_0",
            Self::Q8_0 => "q8_0",
            Self::Mxfp4 => "mxfp4",
            Self::I32 => "i32",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
        }
    }

    /// The type of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.name() == name)
    }

    /// Elements per block; 1 for unblocked types.
    pub fn block_len(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q8_0 | Self::Mxfp4 => 32,
            _ => 1,
        }
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::U16 => 2,
            Self::U64 => 8,
            Self::Q4_0 => q4_0::BYTES,
            Self::Q8_0 => q8_0::BYTES,
            Self::Mxfp4 => mxfp4::BYTES,
        }
    }

    /// Bytes of a row of `elements`, which must be a whole number of blocks.
    pub fn row_bytes(self, elements: usize) -> usize {
        debug_assert_eq!(elements % self.block_len(), 0);
        elements / self.block_len() * self.block_bytes()
    }

    /// True for types whose elements share a scale.
    pub fn is_blocked(self) -> bool {
        self.block_len() > 1
    }

    /// The width in bytes of the multi-byte number at the start of each block, and the distance to the next one.
    /// Codes are bytes and have no byte order.
    fn ordered_field(self) -> usize {
        match self {
            Self::Mxfp4 => 1,
            Self::Q4_0 | Self::Q8_0 => 2,
            other => other.block_bytes(),
        }
    }

    /// Reverses the byte order of every multi-byte number in a run of whole blocks:
    /// what a big-endian host does between a blob and its own memory. Its own inverse.
    pub fn swap_bytes(self, blocks: &mut [u8]) {
        debug_assert_eq!(blocks.len() % self.block_bytes(), 0);
        for block in blocks.chunks_exact_mut(self.block_bytes()) {
            block[..self.ordered_field()].reverse();
        }
    }

    /// Decodes a run of whole blocks exactly into f64 (integers included).
    pub fn decode(self, blocks: &[u8], out: &mut [f64]) {
        debug_assert_eq!(self.row_bytes(out.len()), blocks.len());
        let each = |blocks: &[u8], out: &mut [f64], decode: fn(&[u8], &mut [f64])| {
            let (from, to) = (blocks.chunks_exact(self.block_bytes()), out.chunks_exact_mut(self.block_len()));
            from.zip(to).for_each(|(b, o)| decode(b, o));
        };
        match self {
            Self::F32 => decode_with(blocks, out, |b| f64::from(f32::from_le_bytes(b))),
            Self::F16 => decode_with(blocks, out, |b| f16::from_le_bytes(b).to_f64()),
            Self::I32 => decode_with(blocks, out, |b| f64::from(i32::from_le_bytes(b))),
            Self::U16 => decode_with(blocks, out, |b| f64::from(u16::from_le_bytes(b))),
            Self::U32 => decode_with(blocks, out, |b| f64::from(u32::from_le_bytes(b))),
            Self::U64 => decode_with(blocks, out, |b| u64::from_le_bytes(b) as f64),
            Self::Q4_0 => each(blocks, out, q4_0::decode),
            Self::Q8_0 => each(blocks, out, q8_0::decode),
            Self::Mxfp4 => each(blocks, out, mxfp4::decode),
        }
    }

    /// Writes one block from its scale (the f16 bit pattern, or the e8m0 byte) and its codes
    /// (low four bits or the byte, in element order).
    ///
    /// Only blocked types have blocks to write; for others this does nothing.
    pub fn encode_block(self, scale: u16, codes: &[u8; 32], out: &mut [u8]) {
        match self {
            Self::Q4_0 => q4_0::encode(scale, codes, out),
            Self::Q8_0 => q8_0::encode(scale, codes, out),
            Self::Mxfp4 => mxfp4::encode(scale as u8, codes, out),
            _ => debug_assert!(false, "{self} has no blocks"),
        }
    }
}

impl std::fmt::Display for ElemType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

fn decode_with<const N: usize>(bytes: &[u8], out: &mut [f64], get: impl Fn([u8; N]) -> f64) {
    let (elements, _) = bytes.as_chunks::<N>();
    for (o, b) in out.iter_mut().zip(elements) {
        *o = get(*b);
    }
}

/// Reads little-endian f32 values.
pub fn read_f32(bytes: &[u8]) -> impl ExactSizeIterator<Item = f32> + '_ {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))
}

/// Reads little-endian i32 values.
pub fn read_i32(bytes: &[u8]) -> impl ExactSizeIterator<Item = i32> + '_ {
    bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b))
}

/// The nibbles of 16 code bytes in element order: byte i holds element i low and element i + 16 high.
fn unpack_nibbles(bytes: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 })
}

fn pack_nibbles(codes: &[u8; 32], out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate().take(16) {
        *byte = (codes[i] & 15) | (codes[i + 16] << 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_round_trip() {
        for t in ElemType::ALL {
            assert_eq!(ElemType::from_name(t.name()), Some(t));
            assert_eq!(serde_plain(t), t.name());
        }
        assert_eq!(ElemType::from_name("q9_9"), None);
    }

    fn serde_plain(t: ElemType) -> String {
        // The serialised name must equal the id's name: `show --json` and ids speak one language.
        format!("{t}")
    }

    /// Bytes of a known number in each type, written by hand.
    #[test]
    fn byte_order_is_little_endian_in_every_type() {
        let mut one = [0f64];
        let cases: [(ElemType, &[u8], f64); 6] = [
            (ElemType::F32, &[0, 0, 0x80, 0x3f], 1.0),
            (ElemType::F16, &[0, 0x3c], 1.0),
            (ElemType::I32, &[0xfe, 0xff, 0xff, 0xff], -2.0),
            (ElemType::U16, &[1, 2], 513.0),
            (ElemType::U32, &[1, 0, 0, 0x80], 2147483649.0),
            (ElemType::U64, &[1, 0, 0, 0, 0, 0, 0x10, 0], 4503599627370497.0),
        ];
        for (t, bytes, value) in cases {
            t.decode(bytes, &mut one);
            assert_eq!(one[0], value, "{t}");
        }
    }

    #[test]
    fn byte_swap_reverses_numbers_and_leaves_codes() {
        for t in ElemType::ALL {
            let len = t.block_bytes() * 2;
            let before: Vec<u8> = (0..len as u8).collect();
            let mut swapped = before.clone();
            t.swap_bytes(&mut swapped);
            let field = t.ordered_field();
            for b in 0..2 {
                let at = b * t.block_bytes();
                let reversed: Vec<u8> = before[at..at + field].iter().rev().copied().collect();
                assert_eq!(swapped[at..at + field], reversed[..], "{t}");
                assert_eq!(swapped[at + field..at + t.block_bytes()], before[at + field..at + t.block_bytes()], "{t}");
            }
            t.swap_bytes(&mut swapped);
            assert_eq!(swapped, before, "{t}");
        }
        let mut q8 = vec![0x00, 0x3c];
        q8.extend([7u8; 32]);
        ElemType::Q8_0.swap_bytes(&mut q8);
        assert_eq!(q8[..3], [0x3c, 0x00, 7]);
    }

    #[test]
    fn every_f16_decodes_exactly() {
        let mut out = [0f64];
        for bits in 0..=u16::MAX {
            ElemType::F16.decode(&bits.to_le_bytes(), &mut out);
            let (sign, exp, man) = (bits >> 15, i32::from(bits >> 10 & 31), f64::from(bits & 1023));
            let magnitude = match exp {
                0 => man * 2f64.powi(-24),
                31 if man == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                e => (1024.0 + man) * 2f64.powi(e - 25),
            };
            let want = if sign == 1 { -magnitude } else { magnitude };
            assert!(out[0].to_bits() == want.to_bits() || out[0].is_nan() && want.is_nan(), "{bits:#06x}");
        }
    }

    #[test]
    fn nibbles_keep_element_order() {
        let codes: [u8; 32] = std::array::from_fn(|i| (i as u8 * 7) & 15);
        let mut packed = [0u8; 16];
        pack_nibbles(&codes, &mut packed);
        assert_eq!(packed[0], codes[0] | codes[16] << 4);
        assert_eq!(unpack_nibbles(&packed), codes);
    }
}
