//! Decoders of unblocked and 32-wide weights: stored bytes of a row to f32.
//!
//! A decoder takes a row and a column `k0`, a multiple of [`TILE_K`], and decodes
//! the values from there on, no more than that: a step of k lies in one half of a
//! block. Code times scale is exact in f32, so a weight with a minimum is rounded
//! once and every other one not at all.

use conform_cases::formats::read_f32;
use half::f16;
use half::slice::HalfFloatSliceExt;

use super::arguments::TILE_K;

/// The bytes of block `index` of a row.
#[inline(always)]
pub(super) fn block<const BYTES: usize>(row: &[u8], index: usize) -> &[u8; BYTES] {
    &row.as_chunks::<BYTES>().0[index]
}

/// The f16 at the start of some bytes.
#[inline(always)]
pub(super) fn read_f16(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

#[inline(always)]
pub(super) fn f32(row: &[u8], k0: usize, out: &mut [f32]) {
    for (o, value) in out.iter_mut().zip(read_f32(&row[4 * k0..])) {
        *o = value;
    }
}

#[inline(always)]
pub(super) fn f16(row: &[u8], k0: usize, out: &mut [f32]) {
    let mut values = [f16::ZERO; TILE_K];
    for (value, bytes) in values.iter_mut().zip(&row.as_chunks::<2>().0[k0..][..out.len()]) {
        *value = f16::from_le_bytes(*bytes);
    }
    values[..out.len()].convert_to_f32_slice(out);
}

/// A bf16 is the upper half of an f32.
#[inline(always)]
pub(super) fn bf16(row: &[u8], k0: usize, out: &mut [f32]) {
    for (o, bytes) in out.iter_mut().zip(&row.as_chunks::<2>().0[k0..]) {
        *o = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

/// Codes of four bits: low nibbles are the first half of a block, high nibbles the second.
#[inline(always)]
fn four_bits(nibbles: &[u8], k0: usize) -> [i32; TILE_K] {
    let shift = k0 % 32 / 16 * 4;
    std::array::from_fn(|i| i32::from(nibbles[i] >> shift & 15))
}

/// Codes of five bits: four bytes with the fifth bit of each value, then nibbles.
#[inline(always)]
fn five_bits(codes: &[u8], k0: usize) -> [i32; TILE_K] {
    let fifth = u32::from_le_bytes([codes[0], codes[1], codes[2], codes[3]]) >> (k0 % 32);
    let low = four_bits(&codes[4..], k0);
    std::array::from_fn(|i| low[i] + 16 * (fifth >> i & 1) as i32)
}

#[inline(always)]
pub(super) fn q4_0(row: &[u8], k0: usize, out: &mut [f32]) {
    let block = block::<18>(row, k0 / 32);
    let scale = read_f16(block);
    for (o, code) in out.iter_mut().zip(four_bits(&block[2..], k0)) {
        *o = scale * (code - 8) as f32;
    }
}

#[inline(always)]
pub(super) fn q4_1(row: &[u8], k0: usize, out: &mut [f32]) {
    let block = block::<20>(row, k0 / 32);
    let (scale, min) = (read_f16(block), read_f16(&block[2..]));
    for (o, code) in out.iter_mut().zip(four_bits(&block[4..], k0)) {
        *o = scale * code as f32 + min;
    }
}

#[inline(always)]
pub(super) fn q5_0(row: &[u8], k0: usize, out: &mut [f32]) {
    let block = block::<22>(row, k0 / 32);
    let scale = read_f16(block);
    for (o, code) in out.iter_mut().zip(five_bits(&block[2..], k0)) {
        *o = scale * (code - 16) as f32;
    }
}

#[inline(always)]
pub(super) fn q5_1(row: &[u8], k0: usize, out: &mut [f32]) {
    let block = block::<24>(row, k0 / 32);
    let (scale, min) = (read_f16(block), read_f16(&block[2..]));
    for (o, code) in out.iter_mut().zip(five_bits(&block[4..], k0)) {
        *o = scale * code as f32 + min;
    }
}

#[inline(always)]
pub(super) fn q8_0(row: &[u8], k0: usize, out: &mut [f32]) {
    let block = block::<34>(row, k0 / 32);
    let scale = read_f16(block);
    for (o, code) in out.iter_mut().zip(&block[2 + k0 % 32..]) {
        *o = scale * f32::from(*code as i8);
    }
}
