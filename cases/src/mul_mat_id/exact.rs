//! Integer recipes whose sums are exact in any order of addition.
//!
//! Weights and activations are small multiples of a power of two, so every
//! product is a multiple of one unit; where the sum of magnitudes stays within
//! 2^24 units an f32 sum never rounds (*wide*), within 2^11 units neither does
//! an f16 sum (*narrow*). One activation of ±127 in every block of 32 makes the
//! scale of an 8-bit activation quantiser exactly 1, so such devices are exact
//! too; narrow keeps the weight under it at zero.
//!
//! Some recipes hold one operand that a conversion would change, so that exact
//! results show what a device converts: an activation of 255, 257 or 2049 in the
//! anchor's place of the last block, the others being −1, 0 or 1, or weights of
//! 2049 units.
//!
//! The range of the other activations depends on recipe, type and k alone,
//! chosen so that the worst case fits. Where even ±1 everywhere would not fit,
//! only some blocks of 32 are active and the rest of the activations are zero.

use super::{Data, MulMatId};
use crate::formats::ElemType;
use crate::stream::Stream;

/// Activations share a scale in blocks of this many values on devices that quantise them.
pub(super) const ACTIVATION_BLOCK: usize = 32;
/// The activation that pins an 8-bit scale to 1.
pub(super) const ANCHOR: i64 = 127;

const ANCHORS: u64 = 0x61;

/// The ranges of an exact recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exact {
    blocks: usize,
    active: usize,
    /// Activations other than the anchor lie in `-x_max..=x_max`.
    pub(super) x_max: u64,
}

impl Exact {
    pub(super) fn new(data: Data, w: ElemType, k: usize) -> Self {
        let blocks = k.div_ceil(ACTIVATION_BLOCK);
        let weight = largest_weight(data, w, k);
        let others = (ACTIVATION_BLOCK - 1) * weight;
        if data.large_activation().is_some() {
            // Beside an activation of 257 that still fits 11 bits; 2049 needs 24 in any case.
            return Exact { blocks, active: blocks.min(((1 << 11) - 257) / others), x_max: 1 };
        }
        let (capacity, anchor) = match data {
            Data::Narrow => (1 << 11, 0),
            _ => (1 << 24, ANCHOR as usize * weight),
        };
        let active = blocks.min(capacity / (2 * anchor).max(others));
        let x_max = (capacity / active - anchor) / others;
        Exact { blocks, active, x_max: x_max.min(LARGEST_OTHER) as u64 }
    }

    /// Whether a block of activations is not all zero: active blocks are spread evenly, and the last one is always
    /// among them.
    pub(super) fn is_active(&self, block: usize) -> bool {
        (block + 1) * self.active / self.blocks > block * self.active / self.blocks
    }
}

/// The largest |p| + |o| of a weight, in units.
fn largest_weight(data: Data, w: ElemType, k: usize) -> usize {
    match (data, w) {
        (Data::W2049, _) => W2049_STEP as usize * w2049_steps(w),
        (data, _) if data.has_small_codes() => 2,
        // Scales span two powers of two. q4_0 and q5_0: p = d·code, o = −8d or −16d.
        (_, ElemType::Q4_0) => (15 + 8) * 4,
        (_, ElemType::Q4_1) => (15 + 15) * 4,
        (_, ElemType::Q5_0) => (31 + 16) * 4,
        (_, ElemType::Q5_1) => (31 + 31) * 4,
        (_, ElemType::Q8_0) => 128 * 4,
        // Scales and minima of sub-blocks have six bits.
        (_, ElemType::Q4K) => 15 * 63 + 63,
        (_, ElemType::Q6K) => (63 + 32) * largest_q6_scale(k),
        // Units of one half, scales 2 to 8 against the smallest 2.
        (_, ElemType::Mxfp4) => 12 * 4,
        _ => WIDE_INTEGER as usize,
    }
}

/// Recipe `w2049`: weights are multiples of this, which f16 holds, by 0, ±1 and ±3; three make 2049, which it does not.
pub(super) const W2049_STEP: i64 = 683;

/// The largest |p| + |o| of a weight in such steps: the code of zero lies in the middle of the range.
fn w2049_steps(w: ElemType) -> usize {
    match w {
        ElemType::Q4_0 | ElemType::Q4_1 | ElemType::Q4K => 11 + 8,
        ElemType::Q5_0 | ElemType::Q5_1 => 19 + 16,
        ElemType::Q6K => 35 + 32,
        _ => 3,
    }
}

/// Whether a weight can need more bits than f16 has: not where it is stored in so few, or is a small number of halves
/// times a power of two.
pub(super) fn has_twelve_bits(w: ElemType) -> bool {
    w == ElemType::F32 || w.is_blocked() && w != ElemType::Mxfp4
}

/// Whether an element lies in the place where recipes with a large activation have it.
pub(super) fn is_large(case: &MulMatId, seed: u64, i: usize) -> bool {
    let last = (case.k - 1) / ACTIVATION_BLOCK;
    case.data.large_activation().is_some() && i == last * ACTIVATION_BLOCK + anchor(seed, last, case.k)
}

/// The largest scale of a q6_K sub-block in the wide recipe: smaller in longer rows, so that activations keep a range.
pub(super) fn largest_q6_scale(k: usize) -> usize {
    match k {
        0..=256 => 24,
        257..=1024 => 7,
        _ => 2,
    }
}

/// Devices that store the sum of a block's activations in f16 keep it exact up to 2048: 127 + 31·61 fits.
const LARGEST_OTHER: usize = 61;

/// Unblocked weights of the wide recipe are integers up to this.
pub(super) const WIDE_INTEGER: u64 = 64;

/// The position of the anchor in a block of activations, the same for every row.
pub(super) fn anchor(seed: u64, block: usize, k: usize) -> usize {
    let len = ACTIVATION_BLOCK.min(k - block * ACTIVATION_BLOCK);
    Stream::new(seed, ANCHORS).below(block as u64, len as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_case_fits_for_every_type_and_k() {
        for data in [Data::Wide, Data::Narrow, Data::W2049] {
            for w in ElemType::WEIGHTS.into_iter().filter(|w| data != Data::W2049 || has_twelve_bits(*w)) {
                for k in (1..300).chain((1..60).map(|i| i * 512)).map(|k| k * w.block_len()) {
                    let e = Exact::new(data, w, k);
                    let active = (0..e.blocks).filter(|b| e.is_active(*b)).count();
                    assert_eq!(active, e.active);
                    assert!(active >= 1 && e.x_max >= 1, "{data} {w} {k}");
                    let weight = largest_weight(data, w, k) as u64;
                    let (limit, anchor) = if data == Data::Narrow { (1 << 11, 0) } else { (1 << 24, 127) };
                    let worst = active as u64 * weight * (31 * e.x_max + anchor);
                    assert!(worst <= limit, "{data} {w} {k}: {worst}");
                }
            }
        }
    }

    #[test]
    fn short_rows_use_the_whole_range() {
        assert_eq!(Exact::new(Data::Wide, ElemType::Mxfp4, 64).x_max, 61);
        assert_eq!(Exact::new(Data::Narrow, ElemType::Mxfp4, 256).x_max, 4);
    }
}
