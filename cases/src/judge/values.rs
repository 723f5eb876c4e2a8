//! Judging approximate values, element by element.

use super::pattern::{self, Place, Wrong};
use super::{Check, Failure, Findings, Metrics};
use crate::formats::read_f32;
use crate::model::Model;

/// What one output element should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// The right value.
    pub value: f64,
    /// The largest error that a correct device may make.
    pub bound: f64,
    /// How to compare.
    pub class: Class,
}

impl Expected {
    /// An element that no correct device writes.
    pub const UNTOUCHED: Self = Expected { value: 0.0, bound: 0.0, class: Class::Untouched };
}

/// How an element is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Every correct device gives this value exactly.
    Exact,
    /// Within the bound.
    Finite,
    /// Infinite, with the value's sign.
    Infinite,
    /// Not a number.
    NaN,
    /// Must keep what it held before the run.
    Untouched,
    /// A correct device may overflow: not judged.
    Inconclusive,
}

/// Elements that one check found wrong.
#[derive(Default)]
struct Bad {
    wrong: Vec<Wrong>,
    /// Position in `wrong` and badness of the worst.
    worst: (usize, f64),
}

impl Bad {
    fn add(&mut self, element: usize, e: &Expected, got: f32, badness: f64) {
        if self.wrong.is_empty() || badness > self.worst.1 {
            self.worst = (self.wrong.len(), badness);
        }
        self.wrong.push(Wrong { element, expected: e.value, got });
    }

    /// The failure, with the worst element and what the wrong ones share.
    fn failure(
        &self,
        what: &str,
        of: usize,
        elements: usize,
        place: &dyn Fn(usize) -> Place,
        expected: &dyn Fn(usize) -> Expected,
    ) -> Option<Failure> {
        let worst = self.wrong.get(self.worst.0)?;
        let e = expected(worst.element);
        let error = (f64::from(worst.got) - e.value).abs();
        let allowed = match e.class {
            Class::Exact => format!(", allowed ± 0, error {error:.3e}"),
            Class::Finite if error.is_finite() => {
                format!(", allowed ± {:.3e}, error {error:.3e} ({:.3e} times allowed)", e.bound, error / e.bound)
            }
            _ => String::new(),
        };
        let want = match e.class {
            Class::Untouched => "untouched".to_owned(),
            _ => number(e.value),
        };
        Some(Failure {
            what: format!("{} of {of} elements {what}", self.wrong.len()),
            worst: Some(format!(
                "{}: expected {want}, got {}{allowed}",
                place(worst.element),
                number(f64::from(worst.got))
            )),
            pattern: pattern::find(&self.wrong, elements, place),
        })
    }
}

/// Nine significant digits tell every f32 apart.
fn number(v: f64) -> String {
    if v == 0.0 || (1e-4..1e6).contains(&v.abs()) || !v.is_finite() { format!("{v:.9}") } else { format!("{v:.8e}") }
}

/// Judges an f32 output.
pub fn judge_values(
    model: &Model,
    expected: impl Fn(usize) -> Expected,
    place: impl Fn(usize) -> Place,
    output: &[u8],
    poison: u32,
) -> Findings {
    let (mut unwritten, mut touched, mut class, mut exact, mut values) =
        (Bad::default(), Bad::default(), Bad::default(), Bad::default(), Bad::default());
    let mut totals = Totals::default();
    let elements = output.len() / 4;
    let mut untouchable = 0;
    for (i, got) in read_f32(output).enumerate() {
        let e = expected(i);
        let is_poison = got.to_bits() == poison;
        match e.class {
            Class::Untouched => {
                untouchable += 1;
                if !is_poison {
                    touched.add(i, &e, got, f64::from(got).abs());
                }
                continue;
            }
            _ if is_poison => {
                unwritten.add(i, &e, got, 0.0);
                continue;
            }
            Class::Inconclusive => totals.inconclusive += 1,
            Class::NaN if got.is_nan() => {}
            Class::Infinite if f64::from(got) == e.value => {}
            Class::Exact | Class::Finite if got.is_finite() => {
                let error = (f64::from(got) - e.value).abs();
                if e.class == Class::Exact && error != 0.0 {
                    exact.add(i, &e, got, error);
                } else if e.class == Class::Finite && error > e.bound {
                    values.add(i, &e, got, error / e.bound);
                }
            }
            _ => class.add(i, &e, got, 0.0),
        }
        totals.add(&e, got);
    }
    let written = elements - untouchable;
    let (place, expected): (&dyn Fn(usize) -> Place, &dyn Fn(usize) -> Expected) = (&place, &expected);
    let fail = |bad: &Bad, what: &str, of: usize| bad.failure(what, of, elements, place, expected);
    let mut checks = vec![
        Check::from_failure("written", fail(&unwritten, "were never written", written)),
        Check::from_failure("class", fail(&class, "differ in class (finite, infinite, NaN)", written)),
        match totals.exact {
            0 => Check::not_possible("exact", "no element is exact under this model"),
            n => Check::from_failure(
                "exact",
                fail(&exact, "differ where every order of operations gives the same bits", n),
            ),
        },
        match totals.finite {
            0 => Check::not_possible("values", "no element is judged by a tolerance"),
            n => Check::from_failure("values", fail(&values, "are beyond their bound", n)),
        },
    ];
    if untouchable > 0 {
        let what = "of out-of-range ids were written";
        checks.push(Check::from_failure("untouched", fail(&touched, what, untouchable)));
    }
    Findings { checks, metrics: Some(totals.metrics(model, elements)) }
}

/// Running sums over the finite elements.
#[derive(Default)]
struct Totals {
    exact: usize,
    finite: usize,
    inconclusive: usize,
    powerful: usize,
    /// Elements that zeros in place of the values would get wrong.
    seen_zero: usize,
    nonzero: usize,
    ratio: f64,
    squared_error: f64,
    squared_value: f64,
    max_abs: f64,
    max_rel: f64,
    max_ulp: f64,
}

impl Totals {
    fn add(&mut self, e: &Expected, got: f32) {
        let allowed = match e.class {
            Class::Exact => {
                self.exact += 1;
                0.0
            }
            Class::Finite => {
                self.finite += 1;
                e.bound
            }
            _ => return,
        };
        // An exact zero is worth as much as any other exact value.
        self.powerful += usize::from(e.class == Class::Exact || allowed < e.value.abs() / 2.0);
        self.seen_zero += usize::from(allowed < e.value.abs());
        self.nonzero += usize::from(e.value != 0.0);
        let error = (f64::from(got) - e.value).abs();
        if !error.is_finite() {
            return;
        }
        // Exact elements have an envelope as well; their ratio to it says how far off a wrong one is.
        self.ratio = self.ratio.max(if error == 0.0 { 0.0 } else { error / e.bound });
        self.squared_error += error * error;
        self.squared_value += e.value * e.value;
        self.max_abs = self.max_abs.max(error);
        if error > 0.0 {
            if e.value != 0.0 {
                self.max_rel = self.max_rel.max(error / e.value.abs());
            }
            self.max_ulp = self.max_ulp.max(error / ulp(e.value));
        }
    }

    fn metrics(&self, model: &Model, elements: usize) -> Metrics {
        let judged = self.exact + self.finite;
        Metrics {
            model: model.name.to_owned(),
            elements,
            exact: self.exact,
            inconclusive: self.inconclusive,
            ratio: self.ratio,
            power: if judged == 0 { 0.0 } else { self.powerful as f64 / judged as f64 },
            nmse: if self.squared_value == 0.0 { self.squared_error } else { self.squared_error / self.squared_value },
            max_abs: self.max_abs,
            max_rel: self.max_rel,
            max_ulp: self.max_ulp,
            blind: self.seen_zero == 0 && self.nonzero > 0,
        }
    }
}

/// The distance between neighbouring f32 numbers at `v`.
fn ulp(v: f64) -> f64 {
    // The exponent field, as an f64 has it, of the last place: nothing but a shift, since every element asks.
    let exponent = (v.abs().to_bits() >> 52).clamp(1023 - 126, 1023 + 127);
    f64::from_bits((exponent - 23) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::ElemType;
    use crate::judge::{POISONS, Status};
    use crate::model::{Arithmetic, Kernels, Shape, of_device};

    fn run(expected: &[Expected], got: &[f32]) -> Findings {
        let (kernels, weights) = (Kernels::Own, ElemType::F32);
        let shape = Shape { rows: 1, columns: 1 };
        let arithmetic = Arithmetic { kernels, weights, tokens: 2, shape, flushes: false, flushes_f16: false };
        let model = of_device(&arithmetic);
        let bytes: Vec<u8> = got.iter().flat_map(|v| v.to_le_bytes()).collect();
        judge_values(&model, |i| expected[i], |i| Place(vec![("row", i as i64)]), &bytes, POISONS[0])
    }

    fn finite(value: f64, bound: f64) -> Expected {
        Expected { value, bound, class: Class::Finite }
    }

    fn status<'a>(f: &'a Findings, name: &str) -> &'a Status {
        &f.checks.iter().find(|c| c.name == name).unwrap().status
    }

    /// Each check, failing alone.
    #[test]
    fn every_check_can_fail() {
        let poison = f32::from_bits(POISONS[0]);
        let of = |class| Expected { value: 1.0, bound: 0.1, class };
        let inf = Expected { value: f64::INFINITY, bound: 0.0, class: Class::Infinite };
        let nan = Expected { value: f64::NAN, bound: 0.0, class: Class::NaN };
        for (name, e, good, bad) in [
            ("written", of(Class::Finite), 1.0, poison),
            ("written", of(Class::Inconclusive), 1.0, poison),
            ("written", nan, f32::NAN, poison),
            ("class", of(Class::Finite), 1.0, f32::NAN),
            ("class", of(Class::Exact), 1.0, f32::INFINITY),
            ("class", inf, f32::INFINITY, f32::NEG_INFINITY),
            ("class", inf, f32::INFINITY, 1.0),
            ("class", nan, f32::NAN, f32::INFINITY),
            ("exact", of(Class::Exact), 1.0, 1.0000001),
            ("values", of(Class::Finite), 1.09, 1.11),
            ("untouched", of(Class::Untouched), poison, 0.0),
        ] {
            let other = finite(2.0, 0.1);
            let failed = |got| -> Vec<String> {
                let f = run(&[e, other], &[got, 2.0]);
                f.checks.iter().filter(|c| c.failure().is_some()).map(|c| c.name.clone()).collect()
            };
            assert_eq!(failed(good), Vec::<String>::new(), "{name}");
            assert_eq!(failed(bad), [name]);
        }
    }

    #[test]
    fn units_in_the_last_place() {
        for (v, unit) in [(1.0, 23), (-1.999, 23), (2.0, 22), (0.0, 149), (1e-45, 149), (f64::from(f32::MAX), -104)] {
            assert_eq!(ulp(v), 2f64.powi(-unit), "{v}");
        }
    }

    #[test]
    fn minus_zero_is_zero() {
        let f = run(&[Expected { value: 0.0, bound: 0.1, class: Class::Exact }], &[-0.0]);
        assert_eq!(status(&f, "exact"), &Status::Passed);
    }

    #[test]
    fn metrics_by_hand() {
        let f = run(&[finite(4.0, 0.5), finite(3.0, 2.0), finite(0.0, 1.0)], &[4.25, 3.0, 0.0]);
        let m = f.metrics.unwrap();
        assert_eq!((m.ratio, m.max_abs, m.max_rel), (0.5, 0.25, 0.0625));
        assert_eq!(m.max_ulp, 0.25 / 2f64.powi(-21));
        approx::assert_relative_eq!(m.nmse, 0.0625 / 25.0);
        approx::assert_relative_eq!(m.power, 1.0 / 3.0);
        assert!(!m.blind);
    }

    #[test]
    fn a_model_under_which_zeros_pass_is_blind() {
        assert!(run(&[finite(1.0, 2.0)], &[1.0]).metrics.unwrap().blind);
        assert!(!run(&[finite(0.0, 2.0)], &[0.0]).metrics.unwrap().blind);
    }

    #[test]
    fn failures_name_the_worst_element() {
        let f = run(&[finite(1.0, 0.1), finite(2.0, 0.1)], &[1.2, 3.0]);
        let Status::Failed(failure) = status(&f, "values") else { panic!("passed") };
        assert_eq!(failure.what, "2 of 2 elements are beyond their bound");
        assert_eq!(
            failure.worst.as_deref(),
            Some(
                "row 1: expected 2.000000000, got 3.000000000, allowed ± 1.000e-1, error 1.000e0 (1.000e1 times allowed)"
            )
        );
    }
}
