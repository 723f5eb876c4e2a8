//! How wrong one output element may be: the envelope T = A + C + Q + 2^-24·|y| + N·η.
//!
//! A is the accumulation, C the conversion of operands, Q the quantisation of
//! activations. The bound is that of Higham, "Accuracy and Stability of
//! Numerical Algorithms" (2nd ed., §3.1), and where signs are random its
//! probabilistic form (Higham and Mary 2019; Ipsen and Zhou 2020), whichever is
//! smaller.

use super::products::RAISE;
use super::quantise::Envelope;
use super::rows::RowSums;
use super::sums::Element;
use crate::formats::ElemType;
use crate::model::{Activations, Conversion, Model, Stage, Sums};

/// Tail of a rounding random walk: about 5e-16 per element.
const WALK: f64 = 13.0;
/// Sub-Gaussian tail of independent errors: 2·e^-40 per element.
const TAIL: f64 = 9.0;
/// 2^-24: half a unit in the last place of an f32, relative to it.
const HALF_ULP: f64 = f32::EPSILON as f64 / 2.0;

/// What is known of one output element before a device is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
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

/// What a model says of rows of k columns: everything about a bound that is the same for all elements.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// Signs of products are random and independent.
    signs: bool,
    stages: Vec<StageRule>,
    /// N·η of all stages together.
    underflow: f64,
    /// Relative and absolute errors of the conversions of activations and of weights.
    ux: f64,
    uw: f64,
    ex: f64,
    ew: f64,
    /// Beyond these an operand does not survive its conversion.
    largest_x: f64,
    largest_w: f64,
    /// Roundings of weights that are formed of two parts.
    forming: f64,
    /// Codes up to 6 are summed before a scale is applied.
    sums_codes: bool,
    /// The smallest operands that are not flushed.
    least_x: f64,
    least_w: f64,
    /// An infinite product may meet another on the way, or vanish: an operand or a sum has less range than f32.
    loses_infinities: bool,
    model: Model,
}

/// One accumulation stage of a model.
#[derive(Clone, Copy, Debug)]
struct StageRule {
    /// u·N, and 13·u·√N.
    certain: f64,
    probable: f64,
    /// The partial sums of a random walk grow evenly, and a rounding is uniform: u²/3 on half of R² on average.
    variance: f64,
    /// What a sum near zero loses, once.
    eta: f64,
    /// Sums that overflow, and integers that add exactly.
    largest: f64,
    exact: f64,
    /// The smallest number that still adds exactly: subnormal sums do, unless they are flushed.
    least: f64,
    /// Products that meet in one sum, where that is not the whole row.
    products: Option<f64>,
}

impl StageRule {
    /// No sum of this stage is larger, where products of a row have a sum of magnitudes `s`.
    #[inline(always)]
    fn most(&self, s: f64, t: &Terms<'_>) -> f64 {
        self.products.map_or(s, |n| s.min(n * t.w.max_abs * t.x.max_abs))
    }
}

impl Rules {
    pub(super) fn new(model: &Model, ty: ElemType, k: usize, signs: bool) -> Self {
        let stages = model.stages.iter().map(|stage| {
            let (u, n) = (stage.sums.unit(), stage.roundings.of(k));
            let flushes = model.flushes_sums(stage.sums);
            // Where all is known of a sum, what its roundings can add is too.
            let growth = if stage.products.is_some() { 1.0 + u * n } else { 1.0 };
            StageRule {
                certain: u * n,
                // Truncation is no walk: errors of one sign add up.
                probable: if stage.sums.truncates() { f64::INFINITY } else { WALK * u * n.sqrt() },
                variance: u * u / 6.0 * n,
                eta: stage.sums.underflow(flushes),
                largest: stage.sums.largest() / growth,
                exact: stage.sums.exact_integers(),
                least: stage.sums.least(flushes),
                products: stage.products.map(|n| n as f64),
            }
        });
        // Each product of a row may be one near zero, however few roundings a path has: it is lost itself, or it makes a
        // sum that is flushed. Other sums near zero are exact.
        let near_zero = |stage: &Stage| stage.roundings.of(k).max(k as f64);
        let underflow = |stage| near_zero(stage) * stage.sums.underflow(model.flushes_sums(stage.sums));
        let underflow = model.stages.iter().map(underflow).sum();
        let activations = match model.activations {
            Activations::Converted(c) => c,
            Activations::Quantised(_) => Conversion::None,
        };
        let flushed = if model.flushes { 2f64.powi(-126) } else { 0.0 };
        let least = |conversion| match conversion {
            Conversion::F16 => Sums::F16.least(model.flushes_f16),
            _ => Sums::F32.least(model.flushes),
        };
        let has_f16_sums = model.stages.iter().any(|stage| stage.sums == Sums::F16);
        Rules {
            signs,
            stages: stages.collect(),
            underflow,
            ux: activations.relative(),
            uw: model.weights.relative(),
            ex: activations.absolute(model.flushes_f16).max(flushed),
            ew: model.weights.absolute(model.flushes_f16).max(flushed),
            largest_x: activations.largest(),
            largest_w: model.weights.largest(),
            forming: if model.forms_weights && ty.has_offsets() { 2f64.powi(-23) } else { 0.0 },
            sums_codes: model.scales_sums && ty == ElemType::Mxfp4,
            least_x: least(activations),
            least_w: least(model.weights),
            loses_infinities: has_f16_sums || [activations, model.weights].contains(&Conversion::F16),
            model: model.clone(),
        }
    }

    /// The smaller of a certain bound and, where signs are random, a probabilistic one.
    #[inline(always)]
    fn smaller(&self, certain: f64, probable: f64) -> f64 {
        if self.signs { certain.min(probable) } else { certain }
    }

    /// The envelope.
    #[inline(always)]
    pub(super) fn bound(&self, t: &Terms<'_>) -> f64 {
        let sums = self.accumulation(t) + self.conversion(t) + self.quantisation(t);
        sums * RAISE + HALF_ULP * t.element.y.abs() + self.underflow(t)
    }

    /// A.
    #[inline(always)]
    fn accumulation(&self, t: &Terms<'_>) -> f64 {
        // A device that forms weights has rounded them, and sums them as they are.
        let (s, r2) = if self.model.forms_weights { (t.element.s, t.element.r2) } else { self.parts(t) };
        let r = r2.sqrt();
        // What is summed are converted operands.
        let s = s + self.certain_conversion(t);
        let mut a = self.forming * t.plus.0;
        for stage in &self.stages {
            a += self.smaller(stage.certain * s, stage.probable * r);
        }
        a
    }

    /// S⁺ and R⁺², with the centres of codes where those are multiplied apart.
    #[inline(always)]
    fn parts(&self, t: &Terms<'_>) -> (f64, f64) {
        let (s, r2) = t.plus;
        t.quantised.map_or((s, r2), |q| (s.max(q.parts), r2.max(q.parts_squared)))
    }

    /// What a quantiser's scale is multiplied with: S⁺ and R⁺², or less where a sum of the activations is stored.
    #[inline(always)]
    fn codes(q: &Envelope, plus: (f64, f64)) -> (f64, f64) {
        if q.codes > 0.0 { (q.codes, q.codes_squared) } else { plus }
    }

    /// N·η.
    #[inline(always)]
    fn underflow(&self, t: &Terms<'_>) -> f64 {
        // 33 roundings of code·x near zero in each block, then multiplied with its scale.
        let scaled = |stage: &StageRule| 33.0 * t.w.scales * stage.eta;
        let scaled: f64 = if self.model.scales_sums { self.stages.iter().map(scaled).sum() } else { 0.0 };
        self.underflow + scaled
    }

    /// C.
    #[inline(always)]
    fn conversion(&self, t: &Terms<'_>) -> f64 {
        let certain = self.certain_conversion(t);
        if certain == 0.0 {
            return 0.0;
        }
        let spread = self.joint() * t.element.r2.sqrt() + self.ex * t.w.sum_squares.sqrt();
        self.smaller(certain, TAIL * spread + self.ew * t.x.sum_abs)
    }

    #[inline(always)]
    fn certain_conversion(&self, t: &Terms<'_>) -> f64 {
        let joint = self.joint();
        if joint == 0.0 && self.ex == 0.0 && self.ew == 0.0 {
            return 0.0;
        }
        joint * t.element.s + self.ex * t.w.sum_abs + self.ew * t.x.sum_abs
    }

    /// The relative error of a product of converted operands.
    #[inline(always)]
    fn joint(&self) -> f64 {
        self.ux + self.uw + self.ux * self.uw
    }

    /// Q.
    #[inline(always)]
    fn quantisation(&self, t: &Terms<'_>) -> f64 {
        let Some(q) = &t.quantised else { return 0.0 };
        // Known codes leave nothing but this.
        if q.relative == 0.0 && q.half_steps == 0.0 {
            return q.certain;
        }
        let (s, r2) = Self::codes(q, t.plus);
        let r = r2.sqrt();
        let certain = q.half_steps + q.relative * (s + q.half_steps) + q.certain + q.stored_sums;
        let half_steps = q.half_steps_squared.sqrt();
        let probable = half_steps + q.relative * (r + half_steps) + q.stored_sums_squared.sqrt();
        self.smaller(certain, TAIL * probable + q.certain)
    }

    /// Variances of the error: of the accumulation alone, and with the errors that outputs share. For random signs.
    #[inline(always)]
    pub(super) fn variances(&self, t: &Terms<'_>) -> (f64, f64) {
        let y = t.element.y;
        let r2 = self.parts(t).1;
        let stages: f64 = self.stages.iter().map(|stage| stage.variance * r2).sum();
        // Products of scales are rounded for each output.
        let products =
            t.quantised.as_ref().map_or(0.0, |q| q.relative_of_output.powi(2) / 3.0 * Self::codes(q, t.plus).1);
        let own = stages + products + HALF_ULP * HALF_ULP * y * y / 3.0 + self.underflow(t).powi(2);
        let activations = match &t.quantised {
            Some(q) => {
                q.half_steps_squared / 3.0
                    + q.relative * q.relative / 3.0 * Self::codes(q, t.plus).1
                    + q.stored_sums_squared / 3.0
                    + q.certain * q.certain
            }
            None => self.ux * self.ux * t.element.r2 / 6.0 + self.ex * self.ex / 3.0 * t.w.sum_squares,
        };
        let weights = self.uw * self.uw * t.element.r2 / 6.0 + self.ew * self.ew / 3.0 * t.x.sum_squares;
        (own, own + activations + weights)
    }

    /// What of an output's error need not be random: numbers near zero lose bits with the number's own sign.
    #[inline(always)]
    pub(super) fn near_zero(&self, t: &Terms<'_>) -> f64 {
        let products = t.quantised.map_or(0.0, |q| q.near_zero);
        self.ex * t.w.sum_abs + self.ew * t.x.sum_abs + self.underflow(t) + products
    }

    /// True where an output that is infinite may become NaN on a correct device.
    pub(super) fn loses_infinities(&self) -> bool {
        self.loses_infinities
    }

    /// True where a correct device may leave the range of its numbers on the way.
    #[inline(always)]
    pub(super) fn overflows(&self, t: &Terms<'_>) -> bool {
        let s = t.plus.0 * RAISE;
        let sums = self.stages.iter().any(|stage| stage.most(s, t) > stage.largest);
        let x_range = t.quantised.map_or(t.x.max_abs > self.largest_x, |q| q.overflows);
        // A device that scales sums never forms a weight, but sums codes up to 6 before it scales.
        let w_range = match self.sums_codes {
            true => 6.0 * t.x.sum_abs > f64::from(f32::MAX),
            false => t.w.max_abs > self.largest_w,
        };
        sums || x_range || w_range
    }

    /// True where every correct order of operations gives the same bits.
    #[inline(always)]
    pub(super) fn is_exact(&self, t: &Terms<'_>) -> bool {
        let activations_survive = match self.model.activations {
            Activations::Converted(c) => t.x.survives(c),
            Activations::Quantised(_) => t.quantised.is_some_and(|q| q.is_exact),
        };
        if !activations_survive || !t.w.survives(self.model.weights) {
            return false;
        }
        let (s, _) = t.plus;
        if s == 0.0 {
            return true;
        }
        let unit = t.w.unit * t.x.unit;
        // Operands must be representable too, and code·x in halves where sums are scaled.
        let x = if self.model.scales_sums { t.x.unit / 2.0 } else { t.x.unit };
        let adds = |stage: &StageRule| unit >= stage.least && stage.most(s, t) < stage.exact * unit;
        x >= self.least_x && t.w.unit >= self.least_w && self.stages.iter().all(adds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Arithmetic, Kernels, Shape, of_device};

    fn model() -> Model {
        of_device(&Arithmetic {
            kernels: Kernels::Own,
            weights: ElemType::F32,
            tokens: 2,
            shape: Shape { rows: 1, columns: 4 },
            flushes: false,
            flushes_f16: false,
        })
    }

    fn rules(model: &Model, k: usize, signs: bool) -> Rules {
        Rules::new(model, ElemType::F32, k, signs)
    }

    fn terms<'a>(element: Element, w: &'a RowSums, x: &'a RowSums) -> Terms<'a> {
        Terms { element, plus: (element.s, element.r2), w, x, quantised: None }
    }

    fn row(values: &[f64]) -> RowSums {
        RowSums::new(values)
    }

    /// Bounds of a row worked out by hand: k 4, w = 1, x = 1.
    #[test]
    fn by_hand() {
        let ones = row(&[1.0; 4]);
        let element = Element { y: 4.0, s: 4.0, r2: 4.0 };
        let got = rules(&model(), 4, false).bound(&terms(element, &ones, &ones));
        // N = 4: A = 4·4·2^-24, 2^-24·|y| = 4·2^-24, N·η = 4·2^-149.
        approx::assert_relative_eq!(
            got,
            (16.0 * RAISE + 4.0) * 2f64.powi(-24) + 4.0 * 2f64.powi(-149),
            max_relative = 1e-12
        );
        // The probabilistic form takes the smaller term, here still the certain one: 13·√4·2 > 16.
        assert_eq!(rules(&model(), 4, true).bound(&terms(element, &ones, &ones)), got);
        let long = Element { y: 0.0, s: 4000.0, r2: 4000.0 };
        let wide = rules(&model(), 4000, true).bound(&terms(long, &ones, &ones));
        approx::assert_relative_eq!(wide, 13.0 * 2f64.powi(-24) * 4000.0 * RAISE, max_relative = 1e-9);
    }

    #[test]
    fn f16_operands_widen_the_bound_and_limit_exactness() {
        let mut model = model();
        let (w, x) = (row(&[2049.0]), row(&[1.0]));
        let t = terms(Element { y: 2049.0, s: 2049.0, r2: 2049.0 * 2049.0 }, &w, &x);
        assert!(rules(&model, 1, false).is_exact(&t));
        let plain = rules(&model, 1, false).bound(&t);
        model.weights = Conversion::F16;
        let rules = rules(&model, 1, false);
        assert!(!rules.is_exact(&t));
        assert!(rules.bound(&t) > plain + 1.0);
        let huge = row(&[7e4]);
        assert!(rules.overflows(&terms(Element { y: 7e4, s: 7e4, r2: 4.9e9 }, &huge, &x)));
    }

    #[test]
    fn quantised_activations_add_half_a_step() {
        let ones = row(&[1.0; 32]);
        let element = Element { y: 32.0, s: 32.0, r2: 32.0 };
        let mut t = terms(element, &ones, &ones);
        let rules = |signs| rules(&model(), 32, signs);
        let plain = rules(false).bound(&t);
        let half_steps = 32.0 * 0.5 / 127.0;
        t.quantised =
            Some(Envelope { half_steps, half_steps_squared: 32.0 * (0.5f64 / 127.0).powi(2), ..Envelope::default() });
        approx::assert_relative_eq!(rules(false).bound(&t) - plain, half_steps * RAISE, max_relative = 1e-12);
        // With random signs nine times the root of the squares, where that is smaller.
        let (with, quantised) = (rules(true).bound(&t), t.quantised.take());
        assert_eq!(quantised.map(|q| q.half_steps), Some(half_steps));
        let probable = 9.0 * 32f64.sqrt() * 0.5 / 127.0;
        approx::assert_relative_eq!(
            with - rules(true).bound(&t),
            half_steps.min(probable) * RAISE,
            max_relative = 1e-12
        );
    }
}
