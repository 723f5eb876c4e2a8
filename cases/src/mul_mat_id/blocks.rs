//! Blocks of quantised weights, drawn as scales and codes.
//!
//! Nothing is ever quantised: scales and codes come straight from the stream, so every code and every scale pattern
//! can occur.

use half::f16;

use super::distributions::{CONST, finite_f16, heavy, power_of_two, sign, uniform, wider};
use super::exact::{ACTIVATION_BLOCK, W2049_STEP, anchor, is_large, largest_q6_scale};
use super::{Data, MulMatId};
use crate::formats::{ElemType, Parts};
use crate::stream::{Stream, below, unit};

/// Words of the stream per block: 32 for codes, the rest for scales.
const WORDS: usize = 64;

/// Draws the parts of a block. `at` is (expert, row, block).
pub(super) fn parts(case: &MulMatId, stream: Stream, seed: u64, at: (usize, usize, usize)) -> Parts {
    let word = |i: usize| stream.word((WORDS * at.2 + i) as u64);
    let mut parts = Parts::default();
    random_codes(case.w, &word, &mut parts.codes);
    let (scale, min, sub) = (word(32), word(33), |i: usize| word(34 + i / 8) >> (i % 8 * 8));
    parts.scale = match case.w {
        ElemType::Mxfp4 => u16::from(mxfp4_scale(case, scale, at)),
        _ => half_bits(scale_value(case, scale)),
    };
    parts.min = half_bits(min_value(case, min, &parts));
    if case.data == Data::Scales && case.w != ElemType::Mxfp4 {
        (parts.scale, parts.min) = (finite_f16(scale).to_bits(), finite_f16(min).to_bits());
    }
    sub_blocks(case, &mut parts, sub);
    match case.data {
        data if data.has_small_codes() => small_codes(case, &mut parts, seed, at.2),
        Data::Const => parts.codes = [zero_code(case.w) + 5; 256],
        _ => {}
    }
    parts
}

/// A block whose values are all zero.
pub(super) fn zero(w: ElemType) -> Parts {
    // A zero scale makes any code zero; an e8m0 scale is never zero, so there the codes are.
    Parts { scale: if w == ElemType::Mxfp4 { 130 } else { 0 }, codes: [zero_code(w); 256], ..Parts::default() }
}

/// The scale that makes a whole block NaN.
pub(super) fn nan_scale(w: ElemType) -> u16 {
    if w == ElemType::Mxfp4 { 255 } else { 0x7e00 }
}

fn half_bits(value: f64) -> u16 {
    f16::from_f32(value as f32).to_bits()
}

/// All codes equally likely.
fn random_codes(w: ElemType, word: &impl Fn(usize) -> u64, codes: &mut [u8; 256]) {
    let codes = &mut codes[..w.block_len()];
    // A code has the low bits of a nibble or of a byte of the stream.
    match w.code_bits() {
        4 => codes.chunks_mut(16).enumerate().for_each(|(i, codes)| {
            let pairs = codes.as_chunks_mut::<2>().0.iter_mut().zip(word(i).to_le_bytes());
            pairs.for_each(|(pair, byte)| *pair = [byte & 15, byte >> 4]);
        }),
        bits => codes.chunks_mut(8).enumerate().for_each(|(i, codes)| {
            let bytes = codes.iter_mut().zip(word(i).to_le_bytes());
            bytes.for_each(|(code, byte)| *code = byte & (0xff >> (8 - bits)));
        }),
    }
}

/// The code whose value is zero: with the minimum that the narrow recipe chooses, where the format has minima.
fn zero_code(w: ElemType) -> u8 {
    match w {
        ElemType::Q4_0 | ElemType::Q4_1 | ElemType::Q4K => 8,
        ElemType::Q5_0 | ElemType::Q5_1 => 16,
        ElemType::Q6K => 32,
        _ => 0,
    }
}

/// Formats with a scale for each part of a block.
fn has_sub_blocks(w: ElemType) -> bool {
    matches!(w, ElemType::Q4K | ElemType::Q6K)
}

/// A scale in f16. Formats with scales of sub-blocks have values about 32 times as large for the same scale.
fn scale_value(case: &MulMatId, word: u64) -> f64 {
    let sub_blocks = has_sub_blocks(case.w);
    match case.data {
        Data::Wide if sub_blocks => 0.125,
        Data::Wide => sign(word) * power_of_two(below(word << 32, 3) as i64 - 3),
        Data::W2049 => sign(word) * W2049_STEP as f64 / 512.0,
        data if data.has_small_codes() => sign(word) * 0.5,
        Data::Heavy => heavy(word) / 16.0,
        Data::Huge => uniform(word) * 65504.0,
        Data::Tiny => sign(word) * (word >> 54) as f64 * power_of_two(-24),
        Data::Const => CONST,
        _ if sub_blocks => sign(word) * (0.5 + unit(word) / 2.0) / 512.0,
        _ => sign(word) * (0.5 + unit(word) / 2.0) / 16.0,
    }
}

/// The second f16 of a block: a minimum (q4_1, q5_1), or the scale of minima (q4_K).
fn min_value(case: &MulMatId, word: u64, parts: &Parts) -> f64 {
    let scale = f16::from_bits(parts.scale).to_f64();
    match (case.data, case.w) {
        (data, ElemType::Q4K) if data.is_exact() => scale,
        (Data::Wide, _) => -scale * below(word, 1 << case.w.code_bits().min(5)) as f64,
        (data, _) if data.has_small_codes() => -scale * f64::from(zero_code(case.w)),
        (Data::Const, ElemType::Q4K) => 0.0,
        (_, ElemType::Q4K) => scale_value(case, word),
        (Data::Huge, _) => uniform(word) * 65504.0,
        // As large as a code in the middle of the range makes the rest of the value.
        _ => scale_value(case, word) * f64::from(zero_code(case.w)),
    }
}

fn sub_blocks(case: &MulMatId, parts: &mut Parts, byte: impl Fn(usize) -> u64) {
    match (case.data, case.w) {
        (_, w) if !has_sub_blocks(w) => {}
        (data, _) if data.has_small_codes() || data == Data::Const => parts.sub_mins = [zero_code(case.w); 8],
        (Data::Wide, ElemType::Q6K) => {
            let most = largest_q6_scale(case.k) as u64;
            parts.sub_scales = std::array::from_fn(|i| (below(byte(i) << 56, 2 * most + 1) as i64 - most as i64) as u8);
        }
        (_, ElemType::Q6K) => parts.sub_scales = std::array::from_fn(|i| byte(i) as u8),
        _ => {
            parts.sub_scales = std::array::from_fn(|i| byte(i) as u8 & 63);
            parts.sub_mins = std::array::from_fn(|i| byte(16 + i) as u8 & 63);
        }
    }
}

/// Codes within ±2 of zero (±3 where they make 2049), zero under each anchor, and one under a large activation.
fn small_codes(case: &MulMatId, parts: &mut Parts, seed: u64, block: usize) {
    let zero = zero_code(case.w);
    for code in &mut parts.codes {
        let small = below(u64::from(*code & 15) << 60 | 1 << 59, 5) as i64 - 2;
        let small = if case.data == Data::W2049 { wider(small) as i8 } else { small as i8 };
        *code = match case.w {
            // e2m1 counts in halves: codes 0, 1, 2 and their negatives.
            ElemType::Mxfp4 if small < 0 => 8 | small.unsigned_abs(),
            _ => zero.wrapping_add_signed(small),
        };
    }
    let per_block = case.w.block_len() / ACTIVATION_BLOCK;
    for i in 0..per_block {
        let at = i * ACTIVATION_BLOCK + anchor(seed, block * per_block + i, case.k);
        parts.codes[at] = zero + u8::from(is_large(case, seed, block * case.w.block_len() + at));
    }
}

fn mxfp4_scale(case: &MulMatId, word: u64, (expert, row, _): (usize, usize, usize)) -> u8 {
    let between = |low: u8, high: u8| low + below(word, u64::from(high - low) + 1) as u8;
    match case.data {
        Data::Wide => between(128, 130),
        data if data.has_small_codes() => 128,
        Data::Heavy => between(118, 135),
        Data::Huge => between(157, 187),
        Data::Tiny => between(10, 100),
        Data::Const => 126,
        // A row keeps to one scale, so that a large one does not hide the small ones: rows and experts
        // walk through all finite codes. One block in eight has any code.
        Data::Scales if word.is_multiple_of(8) => between(0, 254),
        Data::Scales => ((row * 7 + expert * 53) % 255) as u8,
        _ => between(123, 126),
    }
}
