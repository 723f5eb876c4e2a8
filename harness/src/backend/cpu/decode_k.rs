//! Decoders of the 256-wide weights, q4_K and q6_K, as those in [`decode`](super::decode).
//!
//! A step of k lies in one sub-block. Scale times sub-scale times code is exact
//! in f32 (q4_K: 11 + 6 + 4 bits, q6_K: 11 + 7 + 5), and so is scale of minima
//! times minimum: a q4_K weight is rounded once and a q6_K weight not at all.

use super::decode::{block, read_f16};

/// f16 scale, f16 scale of minima, 12 bytes of six-bit scales and minima, then nibbles: 32 bytes hold two sub-blocks
/// of 32, the first one in the low nibbles.
#[inline(always)]
pub(super) fn q4_k(row: &[u8], k0: usize, out: &mut [f32]) {
    let block = block::<144>(row, k0 / 256);
    let (sub_block, lane) = (k0 % 256 / 32, k0 % 32);
    let (scale, min) = six_bits(&block[4..16], sub_block);
    let (scale, min) = (read_f16(block) * scale, read_f16(&block[2..]) * min);
    let shift = sub_block % 2 * 4;
    for (o, byte) in out.iter_mut().zip(&block[16 + sub_block / 2 * 32 + lane..]) {
        *o = scale * f32::from(byte >> shift & 15) - min;
    }
}

/// Scale and minimum of a q4_K sub-block. Three words of four lanes: scales 0 to 3, minima 0 to 3, and the low nibbles
/// of scales and minima 4 to 7, whose upper two bits are those of the first two words.
#[inline(always)]
fn six_bits(packed: &[u8], sub_block: usize) -> (f32, f32) {
    let lanes = [0, 4, 8].map(|word| u32::from(packed[word + sub_block % 4]));
    let [scale, min] = match (sub_block < 4, lanes) {
        (true, [scale, min, _]) => [scale & 63, min & 63],
        (false, [scale, min, low]) => [low & 15 | scale >> 6 << 4, low >> 4 | min >> 6 << 4],
    };
    (scale as f32, min as f32)
}

/// 128 bytes of low nibbles, 64 of upper bit pairs, 16 signed scales, f16 scale. In each half of 128 values, 64 bytes
/// hold the nibbles of the first 64 values low and of the others high; 32 bytes hold a pair of each quarter.
#[inline(always)]
pub(super) fn q6_k(row: &[u8], k0: usize, out: &mut [f32]) {
    let block = block::<210>(row, k0 / 256);
    let (half, quarter, lane) = (k0 % 256 / 128, k0 % 128 / 32, k0 % 32);
    let scale = read_f16(&block[208..]) * f32::from(block[192 + k0 % 256 / 16] as i8);
    let low = &block[half * 64 + k0 % 64..];
    let high = &block[128 + half * 32 + lane..];
    for ((o, low), high) in out.iter_mut().zip(low).zip(high) {
        let code = low >> (quarter / 2 * 4) & 15 | (high >> (quarter * 2) & 3) << 4;
        *o = scale * f32::from(code as i8 - 32);
    }
}
