//! Devices that quantise activations to 8 bits: what that adds to the bound, and what the device multiplies where its
//! quantiser is known.

use super::exact::ACTIVATION_BLOCK;
use crate::model::{Quantiser, Rounding, Scales};

use half::f16;
use pulp::{Arch, NullaryFnOnce};

/// One block of a row of activations, as a quantiser sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Block {
    /// d = max|x| / 127; 0 for a block of zeros, which adds nothing.
    d: f64,
    /// Σ|x| and Σx².
    sum_abs: f64,
    sum_squares: f64,
    /// |Σx|.
    sum: f64,
    /// The error of a stored sum: 0 where none is stored.
    sum_error: f64,
    /// The scale, stored in f16, is below its normal numbers.
    tiny_scale: bool,
    /// The scale or the stored sum may leave the range of f16.
    overflows: bool,
    /// Every value is a whole number of steps, and scale and sum are exact as they are stored.
    exact: bool,
}

impl Block {
    /// The step between codes, d.
    pub(super) fn step(&self) -> f64 {
        self.d
    }

    /// The scale, stored in f16, is below its normal numbers.
    pub(super) fn has_tiny_scale(&self) -> bool {
        self.tiny_scale
    }

    /// The scale or the stored sum may leave the range of f16.
    pub(super) fn overflows(&self) -> bool {
        self.overflows
    }

    /// Nothing is lost.
    pub(super) fn is_exact(&self) -> bool {
        self.exact
    }

    /// The error of a stored sum.
    pub(super) fn sum_error(&self) -> f64 {
        self.sum_error
    }
}

/// A row of activations in blocks of 32, whatever the quantiser's width.
pub(super) fn blocks(quantiser: &Quantiser, row: &[f32]) -> Vec<Block> {
    let mut blocks = Vec::with_capacity(row.len().div_ceil(ACTIVATION_BLOCK));
    for wide in row.chunks(quantiser.block) {
        let max = wide.iter().fold(0f64, |m, x| m.max(f64::from(*x).abs()));
        let d = max / 127.0;
        for narrow in wide.chunks(ACTIVATION_BLOCK) {
            blocks.push(block(quantiser, d, narrow));
        }
    }
    blocks
}

fn block(quantiser: &Quantiser, d: f64, values: &[f32]) -> Block {
    if d == 0.0 {
        return Block { exact: true, ..Block::default() };
    }
    let sum: f64 = values.iter().map(|x| f64::from(*x)).sum();
    let (sum_abs, sum_squares) =
        values.iter().fold((0.0, 0.0), |(abs, squares), x| (abs + f64::from(x.abs()), squares + f64::from(*x).powi(2)));
    // A sum of codes is off by half a step for each; one of values by a few roundings.
    let off = if quantiser.parts.sums_of_values { 2f64.powi(-21) * sum_abs } else { 16.0 * d };
    let stored_sum = sum.abs() + off;
    let scale_is_exact = d.log2().fract() == 0.0 && (!quantiser.f16_scale || (-24.0..16.0).contains(&d.log2()));
    let sum_is_exact = !quantiser.f16_sums || f16::from_f64(sum).to_f64() == sum;
    Block {
        d,
        sum_abs,
        sum_squares,
        sum: sum.abs(),
        sum_error: match (quantiser.f16_sums, quantiser.parts.sums_of_values) {
            (false, _) => 0.0,
            (true, false) => (2f64.powi(-11) * stored_sum).max(2f64.powi(-25)),
            (true, true) => (2f64.powi(-11) * stored_sum).max(2f64.powi(-25)) + off,
        },
        tiny_scale: quantiser.f16_scale && d < 2f64.powi(-14),
        overflows: quantiser.f16_scale && d > 65504.0 || quantiser.f16_sums && stored_sum > 65504.0,
        exact: scale_is_exact && sum_is_exact && values.iter().all(|x| (f64::from(*x) / d).fract() == 0.0),
    }
}

/// The largest code of the types whose scales are multiplied in f16.
const LARGEST_CODE: f64 = 31.0;

/// Products of stored numbers stay within f16 where those of the numbers themselves are no larger: both are rounded, by
/// 2^-11 at most.
const F16_MAX: f64 = 65504.0 * (1.0 - 1.0 / 512.0);
/// The smallest normal number of f16.
const F16_NORMAL: f64 = 1.0 / 16384.0;

/// What quantised activations add to the bound of one output element.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Envelope {
    /// Σ|w|·d/2, or Σ|p|·d/2 where a sum of the activations themselves is stored.
    pub(super) half_steps: f64,
    /// Σ w²·d²/4, or p².
    pub(super) half_steps_squared: f64,
    /// The relative error of a scale as it is stored.
    pub(super) relative: f64,
    /// What adds up with certainty. Scales below the normal numbers of f16: an absolute error of 2^-25 in d, times up
    /// to 127.5 steps. Ties that may go either way: a step each.
    pub(super) certain: f64,
    /// What of it need not be random: products in f16 below its normal numbers.
    pub(super) near_zero: f64,
    /// No less than Σ|p||x| and Σ(px)², where a sum of the activations themselves is stored: 0 elsewhere.
    pub(super) codes: f64,
    pub(super) codes_squared: f64,
    /// No less than Σ(|p|+|o|)|x| and Σ((|p|+|o|)x)², likewise.
    pub(super) parts: f64,
    pub(super) parts_squared: f64,
    /// What of `relative` is a rounding for each output.
    pub(super) relative_of_output: f64,
    /// Σ|o|·(error of the stored sum), by block.
    pub(super) stored_sums: f64,
    /// The same, squared.
    pub(super) stored_sums_squared: f64,
    /// The device may leave the range of f16.
    pub(super) overflows: bool,
    /// Nothing is lost at all.
    pub(super) is_exact: bool,
}

/// Σ|w| and Σw² of a row of weights by block of 32, and the block's offset part. Where a sum of the activations
/// themselves is stored they are of p, not of w.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WeightBlock {
    pub(super) sum: f64,
    pub(super) squares: f64,
    /// The largest magnitude, and the smallest.
    pub(super) largest: f64,
    pub(super) least: f64,
    /// The largest magnitude of an offset part.
    pub(super) offset: f64,
    /// Scale and minimum of the whole block are powers of two, or zero: times a whole number they are exact in f16.
    pub(super) has_plain_scales: bool,
}

impl WeightBlock {
    /// The blocks of a row of weights with their offset parts, if they have some: of w, or of p where parts are apart.
    pub(super) fn of_row(w: &[f64], o: Option<&[f64]>, is_apart: bool) -> Vec<Self> {
        let mut blocks = vec![WeightBlock::default(); w.len().div_ceil(ACTIVATION_BLOCK)];
        Arch::new().dispatch(OfRow { w, o, is_apart, blocks: &mut blocks });
        blocks
    }

    /// Of up to a block of values. Four at a time, in an order that is the same on every host.
    #[inline(always)]
    fn of(values: &[f64]) -> Self {
        const LANES: usize = 4;
        let (mut sums, mut squares) = ([0.0f64; LANES], [0.0f64; LANES]);
        let (mut largest, mut least) = ([0.0f64; LANES], [f64::INFINITY; LANES]);
        let mut add = |l: usize, v: f64| {
            let v = v.abs();
            sums[l] += v;
            squares[l] += v * v;
            // What is not a number is neither.
            largest[l] = if v > largest[l] { v } else { largest[l] };
            least[l] = if v < least[l] { v } else { least[l] };
        };
        let (body, tail) = values.as_chunks::<LANES>();
        for four in body {
            for (l, v) in four.iter().enumerate() {
                add(l, *v);
            }
        }
        tail.iter().enumerate().for_each(|(l, v)| add(l, *v));
        WeightBlock {
            sum: sums.iter().sum(),
            squares: squares.iter().sum(),
            largest: largest.into_iter().fold(0.0, f64::max),
            least: least.into_iter().fold(f64::INFINITY, f64::min),
            ..WeightBlock::default()
        }
    }
}

/// Writes the blocks of a row.
struct OfRow<'a> {
    w: &'a [f64],
    o: Option<&'a [f64]>,
    is_apart: bool,
    blocks: &'a mut [WeightBlock],
}

impl NullaryFnOnce for OfRow<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Some(o) = self.o else {
            let of_blocks = self.w.chunks(ACTIVATION_BLOCK).map(WeightBlock::of);
            return self.blocks.iter_mut().zip(of_blocks).for_each(|(block, of)| *block = of);
        };
        let rows = self.w.chunks(ACTIVATION_BLOCK).zip(o.chunks(ACTIVATION_BLOCK));
        for (block, (w, o)) in self.blocks.iter_mut().zip(rows) {
            *block = if self.is_apart {
                let mut p = [0.0; ACTIVATION_BLOCK];
                p.iter_mut().zip(w.iter().zip(o)).for_each(|(p, (w, o))| *p = w - o);
                WeightBlock::of(&p[..w.len()])
            } else {
                WeightBlock::of(w)
            };
            block.offset = WeightBlock::of(o).largest;
        }
    }
}

/// The relative error of a scale as a quantiser stores it, above the subnormal numbers of f16.
pub(super) fn relative_error(quantiser: &Quantiser) -> f64 {
    if quantiser.f16_scale { 2f64.powi(-11) } else { 2f64.powi(-22) }
}

impl Envelope {
    /// The envelope of one row of weights and one of activations.
    pub(super) fn new(quantiser: &Quantiser, w: &[WeightBlock], x: &[Block]) -> Self {
        let scales = quantiser.parts.scales;
        let in_halves = 2f64.powi(-11);
        let relative_of_output = if scales == Scales::HalfProducts { in_halves } else { 0.0 };
        let relative_of_weights = if scales == Scales::HalfWeights { in_halves } else { 0.0 };
        let relative = relative_error(quantiser) + relative_of_output + relative_of_weights;
        let mut e = Envelope { relative, relative_of_output, is_exact: true, ..Envelope::default() };
        for (w, x) in w.iter().zip(x) {
            if quantiser.parts.sums_of_values {
                e.codes += w.largest * x.sum_abs;
                e.codes_squared += w.largest * w.largest * x.sum_squares;
                e.parts += (w.largest + w.offset) * x.sum_abs;
                e.parts_squared += (w.largest + w.offset).powi(2) * x.sum_squares;
            }
            e.scale(scales, w, x);
            e.half_steps += w.sum * x.d / 2.0;
            e.half_steps_squared += w.squares * x.d * x.d / 4.0;
            if x.tiny_scale {
                e.certain += 127.5 * 2f64.powi(-25) * (w.sum + 32.0 * w.offset.abs());
            }
            let sum_error = x.sum_error + if scales.in_halves() { in_halves * x.sum } else { 0.0 };
            e.stored_sums += w.offset.abs() * sum_error;
            e.stored_sums_squared += (w.offset * sum_error).powi(2);
            e.overflows |= x.overflows;
            e.is_exact &= x.exact;
        }
        e
    }

    /// What the place adds where a block's scales are multiplied.
    fn scale(&mut self, scales: Scales, w: &WeightBlock, x: &Block) {
        if scales == Scales::Whole || x.d == 0.0 {
            return;
        }
        // |x| as it is quantised.
        let quantised = x.sum_abs + 16.0 * x.d;
        // No scale of a block is smaller than this, if any code is not zero, and none is larger than the largest |p|.
        let scale = w.largest / LARGEST_CODE;
        let is_tiny = |product: f64| product > 0.0 && product < F16_NORMAL;
        let fits = |value: f64| f16::from_f64(value).to_f64() == value;
        let lost = match scales {
            Scales::Whole => 0.0,
            // A scale or a product of scales that is flushed, times codes up to 127·12.
            Scales::Apart => {
                self.overflows |= 127.0 * w.sum > f64::from(f32::MAX);
                2f64.powi(-110) + 2f64.powi(-123) * quantised
            }
            Scales::HalfProducts => {
                self.overflows |= w.largest * x.d > F16_MAX || w.offset * x.sum > F16_MAX;
                self.is_exact &= !is_tiny(scale * x.d) && fits(w.offset * x.sum);
                let of_scales = if is_tiny(scale * x.d) { LARGEST_CODE * quantised / x.d } else { 0.0 };
                let of_sums = if is_tiny(w.offset * x.sum) { 1.0 } else { 0.0 };
                2f64.powi(-25) * (of_scales + of_sums)
            }
            Scales::HalfWeights => {
                self.overflows |= w.largest > F16_MAX || w.offset > F16_MAX;
                self.is_exact &= w.has_plain_scales;
                let of_scales = if is_tiny(scale) { LARGEST_CODE * quantised } else { 0.0 };
                let of_sums = if is_tiny(w.offset) { x.sum } else { 0.0 };
                2f64.powi(-25) * (of_scales + of_sums)
            }
        };
        self.certain += lost;
        self.near_zero += lost;
    }
}

/// A row of activations as a known quantiser leaves it.
pub(super) struct Emulated {
    /// d·code, k values.
    pub(super) values: Vec<f64>,
    /// The stored sum of each block of 32, or the sum of its values where none is stored.
    pub(super) sums: Vec<f64>,
    /// Values so near to a tie that a device's own rounding of x·(1/d) decides: index, and what the other code changes.
    pub(super) ties: Vec<(usize, f64)>,
}

/// Quantises a row as a device does whose way of rounding is known.
pub(super) fn emulate(quantiser: &Quantiser, rounding: Rounding, row: &[f32]) -> Emulated {
    let mut out = Emulated { values: Vec::with_capacity(row.len()), sums: Vec::new(), ties: Vec::new() };
    for (b, block) in row.chunks(quantiser.block).enumerate() {
        let max = block.iter().fold(0f32, |m, x| m.max(x.abs()));
        let d = max / 127.0;
        // Single precision throughout, as on the device.
        let inverse = match rounding {
            _ if max == 0.0 => 0.0,
            Rounding::Even => 127.0 / max,
            Rounding::Away => 1.0 / d,
        };
        let stored = match quantiser.f16_scale {
            true => f64::from(f16::from_f32(d)),
            false if max == 0.0 => 0.0,
            // The 256-wide quantiser keeps the inverse of the inverse.
            false => f64::from(1.0 / inverse),
        };
        for (n, narrow) in block.chunks(ACTIVATION_BLOCK).enumerate() {
            let (mut code_sum, mut ties) = (0.0, Vec::new());
            for (i, x) in narrow.iter().enumerate() {
                let scaled = x * inverse;
                let code = match rounding {
                    Rounding::Even => scaled.round_ties_even(),
                    Rounding::Away => scaled.round(),
                };
                let code = f64::from(code).clamp(-127.0, 127.0);
                let from_tie = (f64::from(scaled).abs().fract() - 0.5).abs();
                if from_tie <= 2f64.powi(-21) * f64::from(scaled).abs() {
                    ties.push(b * quantiser.block + n * ACTIVATION_BLOCK + i);
                }
                out.values.push(stored * code);
                code_sum += code;
            }
            // Another code moves the value by a step, and the sum by a step and its own rounding.
            let rounding_of_sum = if quantiser.f16_sums { 2f64.powi(-10) * (stored * code_sum).abs() } else { 0.0 };
            out.ties.extend(ties.into_iter().map(|i| (i, stored + rounding_of_sum)));
            out.sums.push(match quantiser.f16_sums {
                true => f64::from(f16::from_f32(d * code_sum as f32)),
                false => stored * code_sum,
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Parts;

    const Q8_0: Quantiser = Quantiser {
        block: 32,
        f16_scale: true,
        f16_sums: false,
        rounding: Some(Rounding::Even),
        parts: Parts { sums_of_values: false, centres: false, scales: Scales::Whole },
    };
    const Q8_1: Quantiser = Quantiser { f16_sums: true, ..Q8_0 };
    const Q8_K: Quantiser = Quantiser { block: 256, f16_scale: false, ..Q8_0 };

    fn row(len: usize, f: impl Fn(usize) -> f32) -> Vec<f32> {
        (0..len).map(f).collect()
    }

    #[test]
    fn integers_with_an_anchor_are_exact() {
        let x = row(64, |i| if i % 32 == 5 { -127.0 } else { (i % 7) as f32 - 3.0 });
        for q in [Q8_0, Q8_1] {
            assert!(blocks(&q, &x).iter().all(|b| b.exact && b.d == 1.0));
            let e = emulate(&q, Rounding::Even, &x);
            assert!(e.values.iter().zip(&x).all(|(v, x)| *v == f64::from(*x)));
        }
        let off = row(32, |i| if i == 5 { 126.0 } else { 1.0 });
        assert!(!blocks(&Q8_0, &off)[0].exact);
        // A sum beyond 2048 that is odd is not exact in f16.
        let large = row(32, |i| if i == 0 { 127.0 } else { 62.0 });
        assert!(blocks(&Q8_0, &large)[0].exact && !blocks(&Q8_1, &large)[0].exact);
    }

    /// A whole block and a shorter one, with parts apart and not.
    #[test]
    fn blocks_of_weights_by_hand() {
        let w: Vec<f64> = (0..39).map(|i| f64::from(i % 7) - 3.0).collect();
        let o: Vec<f64> = (0..39).map(|i| if i < 32 { -5.0 } else { 0.5 }).collect();
        for (o, is_apart) in [(None, false), (None, true), (Some(&o), false), (Some(&o), true)] {
            let blocks = WeightBlock::of_row(&w, o.map(|o| &o[..]), is_apart);
            assert_eq!(blocks.len(), 2);
            for (block, range) in blocks.iter().zip([0..32, 32..39]) {
                let part = |i: usize| o.filter(|_| is_apart).map_or(0.0, |o| o[i]);
                let values = || range.clone().map(|i| (w[i] - part(i)).abs());
                assert_eq!((block.sum, block.squares), (values().sum(), values().map(|v| v * v).sum()));
                let ends = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
                assert_eq!((block.least, block.largest), ends);
                assert_eq!(block.offset, o.map_or(0.0, |o| o[range.start].abs()));
            }
        }
        let mut odd = w;
        odd[3] = f64::NAN;
        let block = WeightBlock::of_row(&odd, None, false)[0];
        assert!(block.sum.is_nan() && (block.least, block.largest) == (0.0, 3.0));
    }

    #[test]
    fn the_emulated_quantiser_by_hand() {
        let x = row(32, |i| if i == 0 { 127.0 } else { i as f32 / 2.0 });
        let even = emulate(&Q8_0, Rounding::Even, &x);
        let away = emulate(&Q8_0, Rounding::Away, &x);
        assert_eq!((even.values[1], even.values[3], even.values[5]), (0.0, 2.0, 2.0));
        assert_eq!((away.values[1], away.values[3], away.values[5]), (1.0, 2.0, 3.0));
        // Every odd half is a tie.
        assert_eq!(even.ties.len(), 16);
        assert_eq!(even.sums[0], even.values.iter().sum::<f64>());
        assert_eq!(emulate(&Q8_0, Rounding::Even, &[0.0; 32]).values, vec![0.0; 32]);
    }

    #[test]
    fn errors_stay_within_the_envelope() {
        for q in [Q8_0, Q8_1, Q8_K] {
            let x = row(512, |i| ((i * 37 + i * i * 11) % 1000) as f32 / 250.0 - 2.0);
            let seen = blocks(&q, &x);
            let e = emulate(&q, Rounding::Even, &x);
            for (i, (v, x)) in e.values.iter().zip(&x).enumerate() {
                let d = seen[i / 32].d;
                let relative = if q.f16_scale { 2f64.powi(-11) } else { 2f64.powi(-22) };
                let bound = d / 2.0 + relative * (f64::from(*x).abs() + d / 2.0);
                assert!((v - f64::from(*x)).abs() <= bound, "{q:?} {i}");
            }
        }
    }
}
