//! Weights and activations of a case, straight from the stream.
//!
//! The narrow alphabet of [`distributions`](super::distributions) makes the bytes the same on every host.

use half::vec::HalfFloatVecExt;
use half::{bf16, f16};

use super::distributions::{CONST, finite_f16, heavy, log_uniform, normal, power_of_two, sign, uniform, wider};
use super::exact::{ACTIVATION_BLOCK, ANCHOR, Exact, W2049_STEP, WIDE_INTEGER, anchor, is_large};
use super::{Data, MulMatId, blocks, by_build};
use crate::formats::{ElemType, Parts};
use crate::stream::{Stream, below};

const WEIGHTS: u64 = 0x77;
const ACTIVATIONS: u64 = 0x78;

/// Fills the row `row` of expert `expert`.
pub(super) fn fill_weights(case: &MulMatId, seed: u64, expert: usize, row: usize, bytes: &mut [u8]) {
    let stream = Stream::new(seed, WEIGHTS).at(expert as u64).at(row as u64);
    let special_row = case.data == Data::Special && stream.at(0).one_in(0, 4);
    if let Some(format) = case.w.by_build() {
        for (i, block) in bytes.chunks_exact_mut(format.block_bytes).enumerate() {
            by_build::fill(&format, case.data, stream, i, block);
        }
        return;
    }
    if case.w.is_blocked() {
        for (i, block) in bytes.chunks_exact_mut(case.w.block_bytes()).enumerate() {
            let mut parts = blocks::parts(case, stream, seed, (expert, row, i));
            if case.data == Data::Zeros && stream.at(1).one_in(i as u64, 2) {
                parts = blocks::zero(case.w);
            }
            if special_row && stream.at(2).one_in(i as u64, 4) {
                parts.scale = blocks::nan_scale(case.w);
            }
            case.w.encode_block(&parts, block);
        }
        return;
    }
    let weight = |i: usize| match case.data {
        Data::Zeros if stream.at(1).one_in((i / 32) as u64, 2) => 0.0,
        Data::Special if special_row && stream.at(2).one_in(i as u64, 32) => special_value(stream.at(3).word(i as u64)),
        _ => plain_weight(case, stream.word(i as u64), seed, i),
    };
    match case.data {
        // The most common recipes, with nothing to decide for each value.
        Data::Normal => fill_floats(case.w, bytes, |i| normal(stream.word(i as u64))),
        Data::Uniform => fill_floats(case.w, bytes, |i| uniform(stream.word(i as u64))),
        _ => fill_floats(case.w, bytes, weight),
    }
}

/// NaN half of the time, else an infinity.
fn special_value(word: u64) -> f64 {
    match word >> 62 {
        0 => f64::INFINITY,
        1 => f64::NEG_INFINITY,
        _ => f64::NAN,
    }
}

/// Writes a row of floating-point numbers. f16 and bf16 are rounded by way of f32, which every host does alike.
fn fill_floats(ty: ElemType, bytes: &mut [u8], value: impl Fn(usize) -> f64) {
    let rounded = |i| match value(i) {
        value if value.is_nan() => f32::from_bits(0x7fc0_0000),
        value => value as f32,
    };
    let values = (0..bytes.len() / ty.block_bytes()).map(rounded);
    let words = bytes.as_chunks_mut::<2>().0.iter_mut();
    match ty {
        ElemType::F16 => {
            let halves = Vec::<f16>::from_f32_slice(&values.collect::<Vec<_>>());
            words.zip(halves).for_each(|(to, half)| *to = half.to_le_bytes());
        }
        ElemType::Bf16 => words.zip(values).for_each(|(to, value)| *to = bf16::from_f32(value).to_le_bytes()),
        _ => bytes.as_chunks_mut::<4>().0.iter_mut().zip(values).for_each(|(to, value)| *to = value.to_le_bytes()),
    }
}

/// A weight of an unblocked type.
fn plain_weight(case: &MulMatId, word: u64, seed: u64, i: usize) -> f64 {
    let is_f16 = case.w == ElemType::F16;
    match case.data {
        Data::Wide => (below(word, 2 * WIDE_INTEGER + 1) as f64 - WIDE_INTEGER as f64) * 0.25,
        data if data.has_small_codes() => small_weight(case, word, seed, i),
        Data::Heavy => heavy(word),
        Data::Huge if is_f16 => uniform(word) * 65504.0,
        Data::Huge => log_uniform(word, 30, 60),
        // All subnormal f16 patterns; f32 from the subnormals to where products vanish.
        Data::Tiny if is_f16 => sign(word) * (word >> 54) as f64 * power_of_two(-24),
        Data::Tiny => log_uniform(word, -149, -30),
        Data::Const => CONST,
        Data::Scales if is_f16 => finite_f16(word).to_f64(),
        Data::Scales => log_uniform(word, -40, 40),
        _ => normal(word),
    }
}

/// A weight of the recipes with small codes.
fn small_weight(case: &MulMatId, word: u64, seed: u64, i: usize) -> f64 {
    if i % ACTIVATION_BLOCK == anchor(seed, i / ACTIVATION_BLOCK, case.k) {
        return if is_large(case, seed, i) { 1.0 } else { 0.0 };
    }
    let small = below(word, 5) as i64 - 2;
    let value = if case.data == Data::W2049 { W2049_STEP * wider(small) } else { small };
    value as f64
}

/// Fills activation row `row` (0..b) of a token.
pub(super) fn fill_activations(case: &MulMatId, seed: u64, token: usize, row: usize, bytes: &mut [u8]) {
    let stream = Stream::new(seed, ACTIVATIONS).at(token as u64).at(row as u64);
    let exact = Exact::new(case.data, case.w, case.k);
    let special = case.data == Data::Special && stream.at(0).one_in(0, 4);
    let special_at = stream.at(0).below(1, case.k as u64) as usize;
    let word = |i: usize| stream.word(i as u64);
    let activation = |i: usize| match case.data {
        data if data.is_exact() => exact_activation(case, &exact, seed, word(i), i),
        Data::Loud => uniform(word(i)) * 1e5,
        Data::Heavy => heavy(word(i)),
        Data::Huge => log_uniform(word(i), 20, 48),
        Data::Tiny => log_uniform(word(i), -149, -30),
        Data::Const => CONST,
        Data::Zeros if stream.at(1).one_in((i / ACTIVATION_BLOCK) as u64, 2) => 0.0,
        Data::Special if special && i == special_at => special_value(stream.at(0).word(2)),
        _ => normal(word(i)),
    };
    match case.data {
        Data::Uniform => fill_floats(ElemType::F32, bytes, |i| uniform(word(i))),
        _ => fill_floats(ElemType::F32, bytes, activation),
    }
}

fn exact_activation(case: &MulMatId, exact: &Exact, seed: u64, word: u64, i: usize) -> f64 {
    let block = i / ACTIVATION_BLOCK;
    if !exact.is_active(block) {
        return 0.0;
    }
    let prominent = match case.data.large_activation() {
        Some(large) => is_large(case, seed, i).then_some(large),
        None => (i % ACTIVATION_BLOCK == anchor(seed, block, case.k)).then_some(ANCHOR),
    };
    match prominent {
        Some(value) => sign(word) * value as f64,
        None => below(word, 2 * exact.x_max + 1) as f64 - exact.x_max as f64,
    }
}

/// Bytes outside a view: NaN in every type that has one for sure.
pub(super) fn fill_poison(ty: ElemType, bytes: &mut [u8]) {
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        if let Some(format) = ty.by_build() {
            format.poison(block);
        } else if ty.is_blocked() {
            let parts = Parts { scale: blocks::nan_scale(ty), codes: [3; 256], ..Parts::default() };
            ty.encode_block(&parts, block);
        } else {
            fill_floats(ty, block, |_| f64::NAN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded_rows(id: &str, rows: usize) -> (Vec<Vec<f64>>, Vec<u8>) {
        let case: crate::case::Case = id.parse().unwrap();
        let plan = case.plan();
        let t = &plan.tensors[0];
        let mut bytes = vec![0; t.parent_bytes()];
        case.fill(0, t, &mut bytes);
        let decoded = (0..rows).map(|r| {
            let mut out = vec![0.0; t.shape[0]];
            t.ty.decode(&bytes[t.row_range([r, 0, 0])], &mut out);
            out
        });
        (decoded.collect(), bytes)
    }

    #[test]
    fn every_code_and_every_scale_occurs() {
        for (w, codes) in [("q4_0", 16), ("q4_1", 16), ("q5_0", 32), ("q5_1", 32), ("mxfp4", 15), ("q8_0", 256)] {
            let id = format!("mul_mat_id/w={w},x=f32,e=1,u=1,m=64,n=1,k=1024/route=one,data=wide/v1-1");
            let (rows, _) = decoded_rows(&id, 64);
            // Blocks with the smallest scale (1/8, or 2 for mxfp4) show the codes; larger ones add multiples.
            let mut seen = std::collections::BTreeSet::new();
            let unit = if w == "mxfp4" { 2.0 } else { 0.125 };
            for v in rows.iter().flatten() {
                if (v / unit).abs() <= 128.0 {
                    seen.insert((v / unit * 2.0) as i64);
                }
            }
            assert!(seen.len() >= codes, "{w}: {}", seen.len());
        }
        let id = "mul_mat_id/w=mxfp4,x=f32,e=4,u=4,m=255,n=1,k=32/route=shuffle,data=scales/v1-1";
        let (_, bytes) = decoded_rows(id, 1);
        let scales: std::collections::BTreeSet<u8> = bytes.chunks(17).map(|b| b[0]).collect();
        assert!((0..=254).all(|s| scales.contains(&s)) && !scales.contains(&255));
    }

    #[test]
    fn special_rows_hold_nan_and_infinities() {
        let (rows, _) = decoded_rows("mul_mat_id/w=f32,x=f32,e=1,u=1,m=64,n=1,k=256/route=one,data=special/v1-1", 64);
        let (nan, clean): (Vec<_>, Vec<_>) = rows.iter().partition(|r| r.iter().any(|v| !v.is_finite()));
        assert!(nan.len() > 5 && clean.len() > 20);
        assert!(rows.iter().flatten().any(|v| *v == f64::INFINITY));
        assert!(rows.iter().flatten().any(|v| *v == f64::NEG_INFINITY));
        let (rows, _) = decoded_rows("mul_mat_id/w=mxfp4,x=f32,e=1,u=1,m=64,n=1,k=256/route=one,data=special/v1-1", 64);
        assert!(rows.iter().flatten().any(|v| v.is_nan()));
    }

    #[test]
    fn margins_are_nan_in_every_type() {
        for ty in ElemType::WEIGHTS {
            let mut bytes = vec![0; ty.row_bytes(256)];
            fill_poison(ty, &mut bytes);
            let mut out = [0.0; 256];
            ty.decode(&bytes, &mut out);
            assert!(out.iter().all(|v| v.is_nan()), "{ty}");
        }
    }

    #[test]
    fn a_smaller_shape_keeps_its_values() {
        let (big, _) = decoded_rows("mul_mat_id/w=q4_0,x=f32,e=3,u=1,m=8,n=4,k=256/route=one,data=normal/v1-7", 8);
        let (small, _) = decoded_rows("mul_mat_id/w=q4_0,x=f32,e=1,u=1,m=5,n=1,k=64/route=one,data=normal/v1-7", 5);
        for (s, b) in small.iter().zip(&big) {
            assert_eq!(s[..], b[..64]);
        }
    }
}
