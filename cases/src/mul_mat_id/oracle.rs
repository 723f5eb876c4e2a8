//! The scalar reference of `mul_mat_id`, in f64, with what the bounds need.
//!
//! For every output element y = Σ w·x, S = Σ|w||x| and R² = Σ(w·x)². A product
//! of a stored weight and an f32 activation has at most 48 significant bits, so
//! it is exact in f64. The bounds follow from S, R and a few sums per row and
//! depend on the precision model alone: one pass serves every device.
//!
//! The bound is that of Higham, "Accuracy and Stability of Numerical
//! Algorithms" (2nd ed., §3.1), and in its probabilistic form that of Higham
//! and Mary (2019) and Ipsen and Zhou (2020).

use std::collections::BTreeMap;

use pulp::Arch;
use rayon::prelude::*;

use super::{IDS, MulMatId, OUT, WEIGHTS, X};
use crate::formats::{ElemType, mxfp4_scale, read_f32, read_i32};
use crate::judge::pattern::Place;
use crate::judge::values::{Class, Expected, judge_values};
use crate::judge::{Capabilities, Findings, Oracle};
use crate::model::{Arithmetic, Model, of_device};
use crate::op::Inputs;

/// y, S and R² of one output element.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Element {
    y: f64,
    s: f64,
    r2: f64,
}

/// What the bounds need of one row of weights or activations.
#[derive(Clone, Copy, Debug)]
struct RowSums {
    sum_abs: f64,
    sum_squares: f64,
    max_abs: f64,
    /// Every value is a multiple of this power of two.
    unit: f64,
    /// Every value survives a conversion to f16.
    fits_f16: bool,
    /// Sum of the magnitudes of the block scales (weights that have blocks).
    scales: f64,
}

pub(super) struct MulMatIdOracle {
    case: MulMatId,
    /// The expert of each slot, `None` where the id is out of range.
    experts: Vec<Option<usize>>,
    /// `[slots][m]` per element.
    elements: Vec<Element>,
    /// `[experts][m]`; `None` for experts without a slot.
    weight_rows: Vec<Option<RowSums>>,
    /// `[n][b]`.
    x_rows: Vec<RowSums>,
}

impl MulMatIdOracle {
    pub(super) fn new(case: &MulMatId, inputs: &Inputs<'_>) -> Self {
        let experts = routing(case, inputs);
        let x = activations(case, inputs);
        let mut by_expert: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (slot, expert) in experts.iter().enumerate() {
            if let Some(e) = expert {
                by_expert.entry(*e).or_default().push(slot);
            }
        }
        let (t, bytes) = inputs.tensor(WEIGHTS);
        // One task per row of the output: it decodes that row of every expert in use, once.
        let rows: Vec<_> = (0..case.m)
            .into_par_iter()
            .map(|row| {
                let mut w = vec![0.0; case.k];
                let mut elements = vec![Element::default(); case.slots()];
                let mut sums = Vec::with_capacity(by_expert.len());
                for (expert, slots) in &by_expert {
                    let stored = &bytes[t.row_range([row, *expert, 0])];
                    case.w.decode(stored, &mut w);
                    sums.push((*expert, RowSums { scales: block_scales(case.w, stored), ..row_sums(&w) }));
                    for &slot in slots {
                        let at = case.x_row(slot) * case.k;
                        elements[slot] = dot(&w, &x[at..at + case.k]);
                    }
                }
                (elements, sums)
            })
            .collect();
        let mut elements = vec![Element::default(); case.slots() * case.m];
        let mut weight_rows = vec![None; case.experts * case.m];
        for (row, (column, sums)) in rows.into_iter().enumerate() {
            for (slot, e) in column.into_iter().enumerate() {
                elements[slot * case.m + row] = e;
            }
            for (expert, s) in sums {
                weight_rows[expert * case.m + row] = Some(s);
            }
        }
        let x_rows = x.par_chunks(case.k).map(|r| row_sums(&r.iter().map(|v| f64::from(*v)).collect::<Vec<_>>()));
        MulMatIdOracle { case: case.clone(), experts, elements, weight_rows, x_rows: x_rows.collect() }
    }

    fn expected(&self, model: &Model, slot: usize, row: usize) -> Expected {
        let case = &self.case;
        let Some(w) = self.experts[slot].and_then(|e| self.weight_rows[e * case.m + row].as_ref()) else {
            return Expected { value: 0.0, bound: 0.0, class: Class::Untouched };
        };
        let x = &self.x_rows[case.x_row(slot)];
        let Element { y, s, r2 } = self.elements[slot * case.m + row];
        if !y.is_finite() {
            return Expected { value: y, bound: 0.0, class: if y.is_nan() { Class::NaN } else { Class::Infinite } };
        }
        let bound = bound(model, case.k, case.data.has_random_signs(), y, s, r2.sqrt(), w, x);
        let class = if overflows(model, case.w, s, w, x) {
            Class::Inconclusive
        } else if is_exact(model, s, w, x) {
            Class::Exact
        } else {
            Class::Finite
        };
        Expected { value: y, bound, class }
    }

    fn place(&self, element: usize) -> Place {
        let (slot, row) = (element / self.case.m, element % self.case.m);
        let expert = self.experts[slot].map_or(-1, |e| e as i64);
        let (token, slot) = (slot / self.case.used, slot % self.case.used);
        Place(vec![("token", token as i64), ("slot", slot as i64), ("row", row as i64), ("expert", expert)])
    }

    fn model(&self, device: &Capabilities) -> Model {
        of_device(&Arithmetic { weights: self.case.w, tokens: self.case.n, flushes: device.flushes_subnormals })
    }
}

impl Oracle for MulMatIdOracle {
    fn output(&self) -> usize {
        OUT
    }

    fn model(&self, device: &Capabilities) -> Option<Model> {
        Some(MulMatIdOracle::model(self, device))
    }

    fn judge(&self, device: &Capabilities, output: &[u8], poison: u32) -> Findings {
        let model = MulMatIdOracle::model(self, device);
        let expected = |i: usize| self.expected(&model, i / self.case.m, i % self.case.m);
        judge_values(&model, expected, |i| self.place(i), output, poison)
    }

    fn expected(&self, device: &Capabilities) -> Vec<Expected> {
        let model = MulMatIdOracle::model(self, device);
        (0..self.elements.len()).map(|i| self.expected(&model, i / self.case.m, i % self.case.m)).collect()
    }
}

impl MulMatId {
    /// The activation row that a slot (counted over all tokens) multiplies with.
    fn x_row(&self, slot: usize) -> usize {
        slot / self.used * self.b + slot % self.used % self.b
    }
}

fn routing(case: &MulMatId, inputs: &Inputs<'_>) -> Vec<Option<usize>> {
    let (t, bytes) = inputs.tensor(IDS);
    let in_range = |id: i32| usize::try_from(id).ok().filter(|e| *e < case.experts);
    (0..case.n).flat_map(|n| read_i32(&bytes[t.row_range([n, 0, 0])]).map(in_range)).collect()
}

/// All activation rows `[n][b][k]`.
fn activations(case: &MulMatId, inputs: &Inputs<'_>) -> Vec<f32> {
    let (t, bytes) = inputs.tensor(X);
    let rows = (0..case.n).flat_map(|n| (0..case.b).map(move |b| [b, n, 0]));
    rows.flat_map(|at| read_f32(&bytes[t.row_range(at)])).collect()
}

/// Lanes of the sums: a fixed number, so that every host adds in the same order.
const LANES: usize = 16;

fn dot(w: &[f64], x: &[f32]) -> Element {
    Arch::new().dispatch(
        #[inline(always)]
        || dot_lanes(w, x),
    )
}

#[inline(always)]
fn dot_lanes(w: &[f64], x: &[f32]) -> Element {
    let (mut y, mut s, mut r2) = ([0.0f64; LANES], [0.0f64; LANES], [0.0f64; LANES]);
    let (w_body, w_tail) = w.as_chunks::<LANES>();
    let (x_body, x_tail) = x.as_chunks::<LANES>();
    for (w, x) in w_body.iter().zip(x_body) {
        for l in 0..LANES {
            let product = w[l] * f64::from(x[l]);
            y[l] += product;
            s[l] += product.abs();
            r2[l] += product * product;
        }
    }
    for (l, (w, x)) in w_tail.iter().zip(x_tail).enumerate() {
        let product = w * f64::from(*x);
        y[l] += product;
        s[l] += product.abs();
        r2[l] += product * product;
    }
    Element { y: y.iter().sum(), s: s.iter().sum(), r2: r2.iter().sum() }
}

fn row_sums(values: &[f64]) -> RowSums {
    let mut sums =
        RowSums { sum_abs: 0.0, sum_squares: 0.0, max_abs: 0.0, unit: f64::INFINITY, fits_f16: true, scales: 0.0 };
    // The lowest set bit of any value, as an exponent.
    let mut lowest = i32::MAX;
    for &v in values {
        sums.sum_abs += v.abs();
        sums.sum_squares += v * v;
        sums.max_abs = sums.max_abs.max(v.abs());
        sums.fits_f16 &= crate::model::Conversion::F16.keeps(v);
        lowest = lowest.min(lowest_bit(v));
    }
    if lowest != i32::MAX {
        sums.unit = 2f64.powi(lowest);
    }
    sums
}

/// The exponent of the lowest set bit of a normal f64; `i32::MAX` for zero and what is not finite.
fn lowest_bit(v: f64) -> i32 {
    if v == 0.0 || !v.is_finite() {
        return i32::MAX;
    }
    let bits = v.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i32 - 1075;
    exponent + (bits | 1 << 52).trailing_zeros() as i32
}

/// Sum of the magnitudes of a row's block scales. Only mxfp4 has a path that scales sums.
fn block_scales(ty: ElemType, row: &[u8]) -> f64 {
    match ty {
        ElemType::Mxfp4 => row.chunks_exact(ty.block_bytes()).map(|b| mxfp4_scale(b[0])).sum(),
        _ => 0.0,
    }
}

/// The envelope T = A + C + 2^-24·|y| + N·η (numerical contract of the project, tier C).
#[allow(clippy::too_many_arguments, reason = "the symbols of one formula")]
fn bound(model: &Model, k: usize, signs: bool, y: f64, s: f64, r: f64, w: &RowSums, x: &RowSums) -> f64 {
    let (mut a, mut underflow) = (0.0, 0.0);
    for stage in &model.stages {
        let (u, n) = (stage.sums.unit(), stage.roundings(k));
        let certain = u * n * s;
        a += if signs { certain.min(13.0 * u * n.sqrt() * r) } else { certain };
        underflow += n * stage.sums.underflow(model.flushes);
        if model.scales_sums {
            // 33 roundings of code·x near zero in each block, then multiplied with its scale.
            underflow += 33.0 * w.scales * stage.sums.underflow(model.flushes);
        }
    }
    let (ux, uw) = (model.activations.relative(), model.weights.relative());
    let flushed = if model.flushes { 2f64.powi(-126) } else { 0.0 };
    let (ex, ew) = (model.activations.absolute().max(flushed), model.weights.absolute().max(flushed));
    let joint = ux + uw + ux * uw;
    let certain = joint * s + ex * w.sum_abs + ew * x.sum_abs;
    let c = if signs { certain.min(9.0 * (joint * r + ex * w.sum_squares.sqrt()) + ew * x.sum_abs) } else { certain };
    a + c + 2f64.powi(-24) * y.abs() + underflow
}

/// True where a correct device may leave the range of its numbers on the way.
fn overflows(model: &Model, ty: ElemType, s: f64, w: &RowSums, x: &RowSums) -> bool {
    let sums = model.stages.iter().any(|stage| s > stage.sums.largest());
    let x_range = x.max_abs > model.activations.largest();
    // A device that scales sums never forms a weight, but sums codes up to 6 before it scales.
    let w_range = if model.scales_sums && ty == ElemType::Mxfp4 {
        6.0 * x.sum_abs > f64::from(f32::MAX)
    } else {
        w.max_abs > model.weights.largest()
    };
    sums || x_range || w_range
}

/// True where every correct order of operations gives the same bits.
fn is_exact(model: &Model, s: f64, w: &RowSums, x: &RowSums) -> bool {
    use crate::model::Conversion;
    let survives = |c: Conversion, r: &RowSums| c == Conversion::None || r.fits_f16;
    if !survives(model.weights, w) || !survives(model.activations, x) {
        return false;
    }
    if s == 0.0 {
        return true;
    }
    let unit = w.unit * x.unit;
    // The smallest numbers that still add exactly: subnormal sums do, unless they are flushed.
    let least = if model.flushes { 2f64.powi(-126) } else { 2f64.powi(-149) };
    // Operands must be representable too, and code·x in halves where sums are scaled.
    let operands = x.unit.min(w.unit).min(if model.scales_sums { x.unit / 2.0 } else { f64::INFINITY });
    unit >= least && operands >= least && model.stages.iter().all(|stage| s <= stage.sums.exact_integers() * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_is_exact_for_integers_and_odd_lengths() {
        for k in [1, 15, 16, 17, 33, 100] {
            let w: Vec<f64> = (0..k).map(|i| f64::from(i % 7 - 3)).collect();
            let x: Vec<f32> = (0..k).map(|i| (i % 5 - 2) as f32).collect();
            let want: f64 = w.iter().zip(&x).map(|(w, x)| w * f64::from(*x)).sum();
            let magnitude: f64 = w.iter().zip(&x).map(|(w, x)| (w * f64::from(*x)).abs()).sum();
            let e = dot(&w, &x);
            assert_eq!((e.y, e.s), (want, magnitude));
        }
    }

    #[test]
    fn lowest_bits() {
        assert_eq!(lowest_bit(1.0), 0);
        assert_eq!(lowest_bit(12.0), 2);
        assert_eq!(lowest_bit(-0.375), -3);
        assert_eq!(lowest_bit(f64::from(f32::from_bits(1))), -149);
        assert_eq!(lowest_bit(0.0), i32::MAX);
    }

    /// Bounds of a row worked out by hand: k 4, w = 1, x = 1.
    #[test]
    fn bound_by_hand() {
        let model = of_device(&Arithmetic { weights: ElemType::F32, tokens: 2, flushes: false });
        let ones = row_sums(&[1.0; 4]);
        let got = bound(&model, 4, false, 4.0, 4.0, 2.0, &ones, &ones);
        // N = 4: A = 4·4·2^-24, 2^-24·|y| = 4·2^-24, N·η = 4·2^-149.
        approx::assert_relative_eq!(got, 20.0 * 2f64.powi(-24) + 4.0 * 2f64.powi(-149), max_relative = 1e-12);
        // The probabilistic form takes the smaller term, here still the certain one: 13·√4·2 > 16.
        assert_eq!(bound(&model, 4, true, 4.0, 4.0, 2.0, &ones, &ones), got);
        let wide = bound(&model, 4000, true, 0.0, 4000.0, 4000f64.sqrt(), &ones, &ones);
        approx::assert_relative_eq!(wide, 13.0 * 2f64.powi(-24) * 4000.0, max_relative = 1e-9);
    }

    #[test]
    fn f16_operands_widen_the_bound_and_limit_exactness() {
        use crate::model::Conversion;
        let mut model = of_device(&Arithmetic { weights: ElemType::F32, tokens: 2, flushes: false });
        let (w, x) = (row_sums(&[2049.0]), row_sums(&[1.0]));
        assert!(is_exact(&model, 2049.0, &w, &x));
        let plain = bound(&model, 1, false, 2049.0, 2049.0, 2049.0, &w, &x);
        model.weights = Conversion::F16;
        assert!(!is_exact(&model, 2049.0, &w, &x));
        assert!(bound(&model, 1, false, 2049.0, 2049.0, 2049.0, &w, &x) > plain + 1.0);
        assert!(overflows(&model, ElemType::F32, 7e4, &row_sums(&[7e4]), &x));
    }
}
