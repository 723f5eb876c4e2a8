//! Element types and block formats: how stored bytes mean numbers.
//!
//! Everything stored is little-endian on every host. A row of a tensor is a
//! whole number of blocks; unblocked types are blocks of one element. Weights
//! decode exactly to f64: an element is `w = p + o`, where `o` is the part a
//! device may multiply separately, with the sum of a block's activations. Types
//! of [`by_build`] are decoded by the build under test, and by nothing here.

pub mod by_build;
mod decode;
mod k_quants;
mod legacy;
mod mxfp4;
mod parts;

use pulp::Arch;
use serde::{Deserialize, Serialize};

use by_build::ByBuild;
use decode::Decode;
use k_quants::{q4_k, q6_k};
use legacy::Layout;
pub use mxfp4::{E2M1, decode_scale as mxfp4_scale};
pub use parts::Parts;

/// Type of the elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElemType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// 32 values: f16 scale `d`, then 16 bytes of codes; value = d·(code − 8).
    #[serde(rename = "q4_0")]
    Q4_0,
    /// 32 values: f16 `d` and `m`, then 16 bytes of codes; value = d·code + m.
    #[serde(rename = "q4_1")]
    Q4_1,
    /// 32 values: f16 `d`, 4 bytes of fifth bits, 16 bytes of codes; value = d·(code − 16).
    #[serde(rename = "q5_0")]
    Q5_0,
    /// 32 values: f16 `d` and `m`, 4 bytes of fifth bits, 16 bytes of codes; value = d·code + m.
    #[serde(rename = "q5_1")]
    Q5_1,
    /// 32 values: f16 scale `d`, then 32 signed bytes; value = d·code.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// 256 values in sub-blocks of 32 with six-bit scales and minima; value = d·scale·code − dmin·min.
    #[serde(rename = "q4_K")]
    Q4K,
    /// 256 values in sub-blocks of 16 with signed scales; value = d·scale·(code − 32).
    #[serde(rename = "q6_K")]
    Q6K,
    /// 32 values: e8m0 scale byte, then 16 bytes of e2m1 codes (OCP Microscaling Formats 1.0).
    Mxfp4,
    /// 256 values with nibbles for scales and minima of 16: f16 `d` and `dmin` last.
    #[serde(rename = "q2_K")]
    Q2K,
    /// 256 values with six-bit scales of 16: f16 `d` last.
    #[serde(rename = "q3_K")]
    Q3K,
    /// 256 values: f16 `d` and `dmin`, then scales and minima as in q4_K.
    #[serde(rename = "q5_K")]
    Q5K,
    /// 256 values of −1, 0 and 1 from a table, moved by an eighth.
    #[serde(rename = "iq1_s")]
    Iq1S,
    /// the same with finer scales, the block's own spread over their top bits.
    #[serde(rename = "iq1_m")]
    Iq1M,
    /// 256 values from a table, eight at a time.
    #[serde(rename = "iq2_xxs")]
    Iq2Xxs,
    /// 256 values from a table, eight at a time, with finer scales.
    #[serde(rename = "iq2_xs")]
    Iq2Xs,
    /// 256 values from a larger table, eight at a time.
    #[serde(rename = "iq2_s")]
    Iq2S,
    /// 256 values from a table, four at a time.
    #[serde(rename = "iq3_xxs")]
    Iq3Xxs,
    /// 256 values from a larger table, four at a time.
    #[serde(rename = "iq3_s")]
    Iq3S,
    /// 32 values from a table of 16.
    #[serde(rename = "iq4_nl")]
    Iq4Nl,
    /// 256 values from a table of 16, with scales of 32.
    #[serde(rename = "iq4_xs")]
    Iq4Xs,
    /// 256 values of −1, 0 and 1, five in a byte.
    #[serde(rename = "tq1_0")]
    Tq1_0,
    /// 256 values of two bits.
    #[serde(rename = "tq2_0")]
    Tq2_0,
    /// 64 values: four e4m3 scale bytes, then e2m1 codes.
    #[serde(rename = "nvfp4")]
    Nvfp4,
    /// 128 values of one bit: f16 scale, then signs.
    #[serde(rename = "q1_0")]
    Q1_0,
    /// 64 values of two bits: f16 scale, then codes.
    #[serde(rename = "q2_0")]
    Q2_0,
    /// A byte, where what it means is of no interest.
    I8,
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
    /// Every type, in a fixed order: weights, then what else tensors hold.
    pub fn all() -> impl Iterator<Item = ElemType> {
        use ElemType::{I8, I32, U16, U32, U64};
        const OTHERS: [ElemType; 5] = [I8, I32, U16, U32, U64];
        Self::WEIGHTS.into_iter().chain(Self::DECODED_BY_BUILD).chain(OTHERS)
    }

    /// The types of weights that this crate decodes.
    pub const WEIGHTS: [ElemType; 11] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4K,
        Self::Q6K,
        Self::Mxfp4,
    ];

    /// The types of weights that only the build under test decodes; see [`by_build`].
    pub const DECODED_BY_BUILD: [ElemType; 17] = [
        Self::Q2K,
        Self::Q3K,
        Self::Q5K,
        Self::Iq1S,
        Self::Iq1M,
        Self::Iq2Xxs,
        Self::Iq2Xs,
        Self::Iq2S,
        Self::Iq3Xxs,
        Self::Iq3S,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Tq1_0,
        Self::Tq2_0,
        Self::Nvfp4,
        Self::Q1_0,
        Self::Q2_0,
    ];

    /// The name used in case ids.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q8_0 => "q8_0",
            Self::Q4K => "q4_K",
            Self::Q6K => "q6_K",
            Self::Mxfp4 => "mxfp4",
            Self::Q2K => "q2_K",
            Self::Q3K => "q3_K",
            Self::Q5K => "q5_K",
            Self::Iq1S => "iq1_s",
            Self::Iq1M => "iq1_m",
            Self::Iq2Xxs => "iq2_xxs",
            Self::Iq2Xs => "iq2_xs",
            Self::Iq2S => "iq2_s",
            Self::Iq3Xxs => "iq3_xxs",
            Self::Iq3S => "iq3_s",
            Self::Iq4Nl => "iq4_nl",
            Self::Iq4Xs => "iq4_xs",
            Self::Tq1_0 => "tq1_0",
            Self::Tq2_0 => "tq2_0",
            Self::Nvfp4 => "nvfp4",
            Self::Q1_0 => "q1_0",
            Self::Q2_0 => "q2_0",
            Self::I8 => "i8",
            Self::I32 => "i32",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
        }
    }

    /// The type of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|t| t.name() == name)
    }

    /// True for weights that only the build under test decodes.
    pub fn is_decoded_by_build(self) -> bool {
        self.by_build().is_some()
    }

    /// What is known of a type that only the build under test decodes.
    pub fn by_build(self) -> Option<ByBuild> {
        by_build::of(self)
    }

    /// The layout of the 32-wide formats with f16 scales.
    fn layout(self) -> Option<Layout> {
        let (bits, has_min) = match self {
            Self::Q4_0 => (4, false),
            Self::Q4_1 => (4, true),
            Self::Q5_0 => (5, false),
            Self::Q5_1 => (5, true),
            Self::Q8_0 => (8, false),
            _ => return None,
        };
        Some(Layout { bits, has_min })
    }

    /// Elements per block; 1 for unblocked types.
    pub fn block_len(self) -> usize {
        match self {
            Self::Q4K | Self::Q6K => 256,
            Self::Mxfp4 => 32,
            _ if self.layout().is_some() => 32,
            _ => self.by_build().map_or(1, |b| b.block_len),
        }
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::I8 => 1,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::U16 => 2,
            Self::U64 => 8,
            Self::Q4K => q4_k::BYTES,
            Self::Q6K => q6_k::BYTES,
            Self::Mxfp4 => mxfp4::BYTES,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => self.layout().map_or(0, Layout::bytes),
            _ => self.by_build().map_or(0, |b| b.block_bytes),
        }
    }

    /// Bits of a code, in element order in [`Parts::codes`]; 0 for types without codes of our own.
    pub fn code_bits(self) -> u32 {
        match self {
            Self::Mxfp4 | Self::Q4K => 4,
            Self::Q6K => 6,
            _ => self.layout().map_or(0, |l| l.bits),
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

    /// Where the multi-byte numbers of a block lie, as (offset, width). Codes and single bytes have no byte order.
    fn ordered_fields(self) -> Vec<(usize, usize)> {
        let fields: &[(usize, usize)] = match self {
            Self::F32 | Self::I32 | Self::U32 => &[(0, 4)],
            Self::F16 | Self::Bf16 | Self::U16 | Self::Q4_0 | Self::Q8_0 => &[(0, 2)],
            Self::U64 => &[(0, 8)],
            Self::Q4_1 | Self::Q4K => &[(0, 2), (2, 2)],
            Self::Q5_0 => &[(0, 2), (2, 4)],
            Self::Q5_1 => &[(0, 2), (2, 2), (4, 4)],
            Self::Q6K => &[(208, 2)],
            _ => &[],
        };
        let halves = self.by_build().map(|b| b.halves()).unwrap_or_default();
        fields.iter().copied().chain(halves.into_iter().map(|at| (at, 2))).collect()
    }

    /// Reverses the byte order of every multi-byte number in a run of whole blocks:
    /// what a big-endian host does between a blob and its own memory. Its own inverse.
    pub fn swap_bytes(self, blocks: &mut [u8]) {
        debug_assert_eq!(blocks.len() % self.block_bytes(), 0);
        let fields = self.ordered_fields();
        for block in blocks.chunks_exact_mut(self.block_bytes()) {
            for (at, width) in &fields {
                block[*at..at + width].reverse();
            }
        }
    }

    /// Decodes a run of whole blocks exactly into f64 (integers included). Types that only the build decodes become
    /// NaN, which passes for nothing: rows of weights are read through [`Inputs::row`](crate::inputs::Inputs::row),
    /// which has the build's values.
    pub fn decode(self, blocks: &[u8], out: &mut [f64]) {
        Arch::new().dispatch(Decode { ty: self, blocks, out });
    }

    /// The parts `o` of a run of whole blocks, zero for types that have none. With `centres` the centres of q4_0 and
    /// q5_0 codes are among them: devices that keep block sums of activations multiply those instead of single codes.
    pub fn offsets(self, blocks: &[u8], centres: bool, out: &mut [f64]) {
        match (self, self.layout()) {
            (Self::Q4K, _) => self.each_block(blocks, out, q4_k::offsets),
            (Self::Q6K, _) => self.each_block(blocks, out, q6_k::offsets),
            (Self::Q2K, _) => self.each_block(blocks, out, by_build::q2_k_offsets),
            (Self::Q5K, _) => self.each_block(blocks, out, by_build::q5_k_offsets),
            (_, Some(layout)) => self.each_block(blocks, out, |b, o| layout.offsets(b, centres, o)),
            _ => out.fill(0.0),
        }
    }

    /// True for the types that always have a part `o`.
    pub fn has_offsets(self) -> bool {
        matches!(self, Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q6K | Self::Q2K | Self::Q5K)
            || self.largest_parts().is_some()
    }

    /// For types whose part `o` cannot be told from the bytes: the most that |p| + |o| is of |w|.
    pub fn largest_parts(self) -> Option<f64> {
        // p is −1, 0 or 1 times a scale and o is plus or minus an eighth of that scale: (1 + 1/8) / (1 − 1/8) where
        // their signs differ, 1 where they agree or p is zero.
        matches!(self, Self::Iq1S | Self::Iq1M).then_some(9.0 / 7.0)
    }

    /// By block of q4_K: its scale and its minimum, which those of its parts multiply, are powers of two or zero. Nothing
    /// for types that are not asked.
    pub fn plain_scales(self, blocks: &[u8]) -> Vec<bool> {
        let is_plain = |bytes: &[u8]| bytes[0] == 0 && bytes[1] & 3 == 0;
        match self {
            Self::Q4K => blocks.chunks_exact(self.block_bytes()).map(|b| is_plain(b) && is_plain(&b[2..])).collect(),
            _ => Vec::new(),
        }
    }

    /// True where decoding to f32 rounds: a minimum is taken from a product that has more bits beside it.
    pub fn rounds_when_decoded(self) -> bool {
        matches!(self, Self::Q2K | Self::Q5K)
    }

    #[inline(always)]
    fn each_block(self, blocks: &[u8], out: &mut [f64], f: impl Fn(&[u8], &mut [f64])) {
        let (from, to) = (blocks.chunks_exact(self.block_bytes()), out.chunks_exact_mut(self.block_len()));
        for (b, o) in from.zip(to) {
            f(b, o);
        }
    }

    /// Writes one block of a blocked type.
    pub fn encode_block(self, parts: &Parts, out: &mut [u8]) {
        match (self, self.layout()) {
            (Self::Mxfp4, _) => mxfp4::encode(parts, out),
            (Self::Q4K, _) => q4_k::encode(parts, out),
            (Self::Q6K, _) => q6_k::encode(parts, out),
            (_, Some(layout)) => layout.encode(parts, out),
            _ => debug_assert!(false, "{self} has no blocks"),
        }
    }
}

impl std::fmt::Display for ElemType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_round_trip() {
        for t in ElemType::all() {
            assert_eq!(ElemType::from_name(t.name()), Some(t));
            // `show --json` and ids speak one language.
            assert_eq!(serde_json::to_value(t).unwrap(), t.name());
        }
        assert_eq!(ElemType::from_name("q9_9"), None);
    }

    /// Bytes of a known number in each type, written by hand.
    #[test]
    fn byte_order_is_little_endian_in_every_type() {
        let mut one = [0f64];
        let cases: [(ElemType, &[u8], f64); 7] = [
            (ElemType::Bf16, &[0x80, 0xbf], -1.0),
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
        for t in ElemType::all() {
            let len = t.block_bytes() * 2;
            let before: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut swapped = before.clone();
            t.swap_bytes(&mut swapped);
            let fields = t.ordered_fields();
            let in_field = |i: usize| fields.iter().find(|(at, width)| (*at..at + width).contains(&i));
            for i in 0..len {
                let (block, i) = (i / t.block_bytes() * t.block_bytes(), i % t.block_bytes());
                let from = in_field(i).map_or(i, |(at, width)| 2 * at + width - 1 - i);
                assert_eq!(swapped[block + i], before[block + from], "{t} byte {i}");
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
}
