//! Formats that this crate writes and does not read: their values come from the build under test.
//!
//! Codes of these types index tables or are packed in ways that only their
//! authors define. A block is random bytes in which the scales alone are set;
//! the numbers it means are what the build's own decoder makes of it. What is
//! known here is how long a block is, where its scales lie and, for two types,
//! its minima. Lengths were compared with the builds' own; a build that differs
//! says so itself.

use half::f16;

use super::ElemType;
use super::k_quants::q4_k;
use super::legacy::read_f16;

/// What is known of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByBuild {
    /// Elements of a block.
    pub block_len: usize,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Where its scales lie.
    pub scales: Scales,
    /// With scales of this power of two values are of order 1: codes and scales of sub-blocks make up for it.
    pub unit_scale: i64,
    /// 16-bit numbers beside the scales: where the first lies, and how many there are.
    words: (usize, usize),
}

/// The scales of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// f16 numbers at these bytes: the scale, and the scale of minima where there is one.
    F16(&'static [usize]),
    /// One f16 in the top four bits of four 16-bit numbers that begin here, its lowest bits first.
    Spread(usize),
    /// So many bytes from the block's start, one for each 16 values: unsigned numbers with four bits of exponent
    /// (bias 7) and three of mantissa. 0x7f is NaN to some and zero to others, and bit 7 has no meaning.
    Ue4m3(usize),
}

/// What is known of a type; `None` for those that this crate decodes.
pub(super) fn of(ty: ElemType) -> Option<ByBuild> {
    let f16 = |block_len, block_bytes, at, unit_scale, words| {
        Some(ByBuild { block_len, block_bytes, scales: Scales::F16(at), unit_scale, words })
    };
    const NONE: (usize, usize) = (0, 0);
    match ty {
        ElemType::Q2K => f16(256, 84, &[80, 82], -4, NONE),
        ElemType::Q3K => f16(256, 110, &[108], -6, NONE),
        ElemType::Q5K => f16(256, 176, &[0, 2], -9, NONE),
        ElemType::Iq1S => f16(256, 50, &[0], -3, (34, 8)),
        ElemType::Iq1M => {
            Some(ByBuild { block_len: 256, block_bytes: 56, scales: Scales::Spread(48), unit_scale: -3, words: NONE })
        }
        ElemType::Iq2Xxs => f16(256, 66, &[0], -6, (2, 32)),
        ElemType::Iq2Xs => f16(256, 74, &[0], -6, (2, 32)),
        ElemType::Iq2S => f16(256, 82, &[0], -6, NONE),
        ElemType::Iq3Xxs => f16(256, 98, &[0], -7, NONE),
        ElemType::Iq3S => f16(256, 110, &[0], -7, NONE),
        ElemType::Iq4Nl => f16(32, 18, &[0], -6, NONE),
        ElemType::Iq4Xs => f16(256, 136, &[0], -10, (2, 1)),
        ElemType::Tq1_0 => f16(256, 54, &[52], 0, NONE),
        ElemType::Tq2_0 => f16(256, 66, &[64], 0, NONE),
        ElemType::Nvfp4 => {
            Some(ByBuild { block_len: 64, block_bytes: 36, scales: Scales::Ue4m3(4), unit_scale: -2, words: NONE })
        }
        ElemType::Q1_0 => f16(128, 18, &[0], 0, NONE),
        ElemType::Q2_0 => f16(64, 18, &[0], 0, NONE),
        _ => None,
    }
}

impl ByBuild {
    /// How many scales a block has.
    pub fn count(&self) -> usize {
        match self.scales {
            Scales::F16(at) => at.len(),
            Scales::Spread(_) => 1,
            Scales::Ue4m3(count) => count,
        }
    }

    /// Sets one scale: f16 bits, or the byte of a scale that has only one.
    pub fn set_scale(&self, index: usize, bits: u16, block: &mut [u8]) {
        match self.scales {
            Scales::F16(at) => block[at[index]..at[index] + 2].copy_from_slice(&bits.to_le_bytes()),
            Scales::Spread(at) => {
                for i in 0..4 {
                    let nibble = (bits >> (4 * i) & 15) as u8;
                    let high = &mut block[at + 2 * i + 1];
                    *high = *high & 15 | nibble << 4;
                }
            }
            Scales::Ue4m3(_) => block[index] = bits as u8 & 0x7f,
        }
    }

    /// Makes a block that shows wherever it is read: NaN, or the largest number where a format has none for sure.
    pub fn poison(&self, block: &mut [u8]) {
        block.fill(0x77);
        let bits = if matches!(self.scales, Scales::Ue4m3(_)) { 0x7e } else { f16::NAN.to_bits() };
        (0..self.count()).for_each(|i| self.set_scale(i, bits, block));
    }

    /// Where the 16-bit numbers of a block lie.
    pub(super) fn halves(&self) -> Vec<usize> {
        let (at, count) = self.words;
        let words = (0..count).map(|i| at + 2 * i);
        match self.scales {
            Scales::F16(scales) => scales.iter().copied().chain(words).collect(),
            Scales::Spread(at) => (0..4).map(|i| at + 2 * i).chain(words).collect(),
            Scales::Ue4m3(_) => words.collect(),
        }
    }
}

/// The minima of a block of q2_K: 16 bytes with a scale low and a minimum high, one for each 16 values.
pub(super) fn q2_k_offsets(block: &[u8], out: &mut [f64]) {
    let dmin = read_f16(&block[82..]);
    for (out, packed) in out.chunks_exact_mut(16).zip(block) {
        out.fill(-dmin * f64::from(packed >> 4));
    }
}

/// The minima of a block of q5_K, which are packed as those of q4_K.
pub(super) fn q5_k_offsets(block: &[u8], out: &mut [f64]) {
    q4_k::offsets(block, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_lie_inside_of_their_blocks_and_apart() {
        for ty in ElemType::DECODED_BY_BUILD {
            let format = of(ty).unwrap();
            let mut block = vec![0; format.block_bytes];
            for i in 0..format.count() {
                format.set_scale(i, 0x7bff, &mut block);
            }
            let set: u32 = block.iter().map(|b| b.count_ones()).sum();
            let ones = if matches!(format.scales, Scales::Ue4m3(_)) { 0x7f } else { 0x7bffu32 }.count_ones();
            assert_eq!(set as usize, ones as usize * format.count(), "{ty}");
            let halves = format.halves();
            assert!(halves.iter().all(|at| at + 2 <= format.block_bytes), "{ty}");
        }
    }

    #[test]
    fn a_spread_scale_leaves_the_rest_of_its_words() {
        let format = of(ElemType::Iq1M).unwrap();
        let mut block = vec![0xff; 56];
        format.set_scale(0, 0x1234, &mut block);
        assert_eq!(block[48..], [0xff, 0x4f, 0xff, 0x3f, 0xff, 0x2f, 0xff, 0x1f]);
        assert!(block[..48].iter().all(|b| *b == 0xff));
    }

    #[test]
    fn minima_of_q2_k_by_hand() {
        let mut block = [0u8; 84];
        (block[0], block[15]) = (0x2f, 0xf0);
        block[82..].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        let mut out = [9.0; 256];
        q2_k_offsets(&block, &mut out);
        assert_eq!((out[0], out[15], out[16], out[240], out[255]), (-1.0, -1.0, 0.0, -7.5, -7.5));
    }
}
