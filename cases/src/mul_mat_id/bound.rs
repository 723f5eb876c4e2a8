//! How wrong one output element may be: the envelope T = A + C + Q + 2^-24·|y| + N·η.
//!
//! A is the accumulation, C the conversion of operands, Q the quantisation of
//! activations. The bound is that of Higham, "Accuracy and Stability of
//! Numerical Algorithms" (2nd ed., §3.1), and where signs are random its
//! probabilistic form (Higham and Mary 2019; Ipsen and Zhou 2020), whichever is
//! smaller.

use super::quantise::Envelope;
use super::rows::{Element, RowSums};
use crate::formats::ElemType;
use crate::model::{Activations, Conversion, Model};

/// Tail of a rounding random walk: about 5e-16 per element.
const WALK: f64 = 13.0;
/// Sub-Gaussian tail of independent errors: 2·e^-40 per element.
const TAIL: f64 = 9.0;

/// What is known of one output element before a device is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    /// Columns.
    pub(super) k: usize,
    /// Weight type.
    pub(super) ty: ElemType,
    /// Signs of products are random and independent.
    pub(super) signs: bool,
    /// y, S, R².
    pub(super) element: Element,
    /// S⁺ and R⁺²: the same with |p| + |o| for |w|.
    pub(super) plus: (f64, f64),
    /// The row of weights.
    pub(super) w: &'a RowSums,
    /// The row of activations.
    pub(super) x: &'a RowSums,
    /// What quantised activations add, where the model has them.
    pub(super) quantised: Option<Envelope>,
}

impl Terms<'_> {
    /// The smaller of a certain bound and, where signs are random, a probabilistic one.
    fn smaller(&self, certain: f64, probable: f64) -> f64 {
        if self.signs { certain.min(probable) } else { certain }
    }

    /// The envelope under a model.
    pub(super) fn bound(&self, model: &Model) -> f64 {
        let (a, underflow) = self.accumulation(model);
        a + self.conversion(model) + self.quantisation() + 2f64.powi(-24) * self.element.y.abs() + underflow
    }

    /// A, and N·η.
    fn accumulation(&self, model: &Model) -> (f64, f64) {
        // A device that forms weights has rounded them, and sums them as they are.
        let (s, r2) = if model.forms_weights { (self.element.s, self.element.r2) } else { self.plus };
        let (mut a, mut underflow) = (0.0, 0.0);
        for stage in &model.stages {
            let (u, n) = (stage.sums.unit(), stage.roundings.of(self.k));
            a += self.smaller(u * n * s, WALK * u * n.sqrt() * r2.sqrt());
            let eta = stage.sums.underflow(model.flushes);
            underflow += n * eta;
            if model.scales_sums {
                // 33 roundings of code·x near zero in each block, then multiplied with its scale.
                underflow += 33.0 * self.w.scales * eta;
            }
        }
        if model.forms_weights && self.ty.has_offsets() {
            a += 2f64.powi(-23) * self.plus.0;
        }
        (a, underflow)
    }

    /// C.
    fn conversion(&self, model: &Model) -> f64 {
        let activations = match model.activations {
            Activations::Converted(c) => c,
            Activations::Quantised(_) => Conversion::None,
        };
        let (ux, uw) = (activations.relative(), model.weights.relative());
        let flushed = if model.flushes { 2f64.powi(-126) } else { 0.0 };
        let (ex, ew) = (activations.absolute().max(flushed), model.weights.absolute().max(flushed));
        let joint = ux + uw + ux * uw;
        let certain = joint * self.element.s + ex * self.w.sum_abs + ew * self.x.sum_abs;
        let spread = joint * self.element.r2.sqrt() + ex * self.w.sum_squares.sqrt();
        self.smaller(certain, TAIL * spread + ew * self.x.sum_abs)
    }

    /// Q.
    fn quantisation(&self) -> f64 {
        let Some(q) = &self.quantised else { return 0.0 };
        let (s, r) = (self.plus.0, self.plus.1.sqrt());
        let certain = q.half_steps + q.relative * (s + q.half_steps) + q.certain + q.stored_sums;
        let half_steps = q.half_steps_squared.sqrt();
        let probable = half_steps + q.relative * (r + half_steps) + q.stored_sums_squared.sqrt();
        self.smaller(certain, TAIL * probable + q.certain)
    }

    /// Variances of the error: of the accumulation alone, and with the errors that outputs share. For random signs.
    pub(super) fn variances(&self, model: &Model) -> (f64, f64) {
        let y = self.element.y;
        let (_, underflow) = self.accumulation(model);
        let rounding = |stage: &crate::model::Stage| {
            // The partial sums of a random walk grow evenly, and a rounding is uniform: u²/3 on half of R² on average.
            stage.sums.unit().powi(2) / 6.0 * stage.roundings.of(self.k) * self.plus.1
        };
        let own = model.stages.iter().map(rounding).sum::<f64>() + 2f64.powi(-48) * y * y / 3.0 + underflow * underflow;
        let activations = match model.activations {
            Activations::Converted(c) => {
                (c.relative().powi(2) * self.element.r2 / 6.0) + c.absolute().powi(2) / 3.0 * self.w.sum_squares
            }
            Activations::Quantised(_) => self.quantised.map_or(0.0, |q| {
                q.half_steps_squared / 3.0
                    + q.relative.powi(2) / 3.0 * self.plus.1
                    + q.stored_sums_squared / 3.0
                    + q.certain * q.certain
            }),
        };
        let weights = model.weights.relative().powi(2) * self.element.r2 / 6.0
            + model.weights.absolute().powi(2) / 3.0 * self.x.sum_squares;
        (own, own + activations + weights)
    }

    /// True where a correct device may leave the range of its numbers on the way.
    pub(super) fn overflows(&self, model: &Model) -> bool {
        let s = self.plus.0;
        let sums = model.stages.iter().any(|stage| s > stage.sums.largest());
        let x_range = match model.activations {
            Activations::Converted(c) => self.x.max_abs > c.largest(),
            Activations::Quantised(_) => self.quantised.is_some_and(|q| q.overflows),
        };
        // A device that scales sums never forms a weight, but sums codes up to 6 before it scales.
        let w_range = if model.scales_sums && self.ty == ElemType::Mxfp4 {
            6.0 * self.x.sum_abs > f64::from(f32::MAX)
        } else {
            self.w.max_abs > model.weights.largest()
        };
        sums || x_range || w_range
    }

    /// True where every correct order of operations gives the same bits.
    pub(super) fn is_exact(&self, model: &Model) -> bool {
        let activations_survive = match model.activations {
            Activations::Converted(c) => self.x.survives(c),
            Activations::Quantised(_) => self.quantised.is_some_and(|q| q.is_exact),
        };
        if !self.w.survives(model.weights) || !activations_survive {
            return false;
        }
        let (s, _) = self.plus;
        if s == 0.0 {
            return true;
        }
        let unit = self.w.unit * self.x.unit;
        // The smallest numbers that still add exactly: subnormal sums do, unless they are flushed.
        let least = if model.flushes { 2f64.powi(-126) } else { 2f64.powi(-149) };
        // Operands must be representable too, and code·x in halves where sums are scaled.
        let operands =
            self.x.unit.min(self.w.unit).min(if model.scales_sums { self.x.unit / 2.0 } else { f64::INFINITY });
        unit >= least && operands >= least && model.stages.iter().all(|stage| s <= stage.sums.exact_integers() * unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Arithmetic, Kernels, of_device};

    fn model() -> Model {
        of_device(&Arithmetic { kernels: Kernels::Own, weights: ElemType::F32, tokens: 2, flushes: false })
    }

    fn terms<'a>(k: usize, signs: bool, element: Element, w: &'a RowSums, x: &'a RowSums) -> Terms<'a> {
        let plus = (element.s, element.r2);
        Terms { k, ty: ElemType::F32, signs, element, plus, w, x, quantised: None }
    }

    fn row(values: &[f64]) -> RowSums {
        RowSums::new(values.iter().copied())
    }

    /// Bounds of a row worked out by hand: k 4, w = 1, x = 1.
    #[test]
    fn by_hand() {
        let ones = row(&[1.0; 4]);
        let element = Element { y: 4.0, s: 4.0, r2: 4.0 };
        let got = terms(4, false, element, &ones, &ones).bound(&model());
        // N = 4: A = 4·4·2^-24, 2^-24·|y| = 4·2^-24, N·η = 4·2^-149.
        approx::assert_relative_eq!(got, 20.0 * 2f64.powi(-24) + 4.0 * 2f64.powi(-149), max_relative = 1e-12);
        // The probabilistic form takes the smaller term, here still the certain one: 13·√4·2 > 16.
        assert_eq!(terms(4, true, element, &ones, &ones).bound(&model()), got);
        let long = Element { y: 0.0, s: 4000.0, r2: 4000.0 };
        let wide = terms(4000, true, long, &ones, &ones).bound(&model());
        approx::assert_relative_eq!(wide, 13.0 * 2f64.powi(-24) * 4000.0, max_relative = 1e-9);
    }

    #[test]
    fn f16_operands_widen_the_bound_and_limit_exactness() {
        let mut model = model();
        let (w, x) = (row(&[2049.0]), row(&[1.0]));
        let t = terms(1, false, Element { y: 2049.0, s: 2049.0, r2: 2049.0 * 2049.0 }, &w, &x);
        assert!(t.is_exact(&model));
        let plain = t.bound(&model);
        model.weights = Conversion::F16;
        assert!(!t.is_exact(&model));
        assert!(t.bound(&model) > plain + 1.0);
        let huge = row(&[7e4]);
        assert!(terms(1, false, Element { y: 7e4, s: 7e4, r2: 4.9e9 }, &huge, &x).overflows(&model));
    }

    #[test]
    fn quantised_activations_add_half_a_step() {
        let ones = row(&[1.0; 32]);
        let element = Element { y: 32.0, s: 32.0, r2: 32.0 };
        let mut t = terms(32, false, element, &ones, &ones);
        let plain = t.bound(&model());
        let half_steps = 32.0 * 0.5 / 127.0;
        t.quantised =
            Some(Envelope { half_steps, half_steps_squared: 32.0 * (0.5f64 / 127.0).powi(2), ..Envelope::default() });
        approx::assert_relative_eq!(t.bound(&model()) - plain, half_steps, max_relative = 1e-12);
        // With random signs nine times the root of the squares, where that is smaller.
        t.signs = true;
        let (with, quantised) = (t.bound(&model()), t.quantised.take());
        assert_eq!(quantised.map(|q| q.half_steps), Some(half_steps));
        let probable = 9.0 * 32f64.sqrt() * 0.5 / 127.0;
        approx::assert_relative_eq!(with - t.bound(&model()), half_steps.min(probable), max_relative = 1e-12);
    }
}
