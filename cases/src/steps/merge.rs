//! What was found of each step, as findings of the whole: a check fails with its first wrong step, which is named.

use crate::judge::{Check, Findings, Metrics, Status};

/// Findings of the steps so far.
#[derive(Default)]
pub(super) struct Merged {
    checks: Vec<OfSteps>,
    metrics: Option<Metrics>,
}

/// One check over all steps.
struct OfSteps {
    check: Check,
    /// Steps on which it failed.
    failed: usize,
}

impl Merged {
    /// Adds what was found of a step.
    pub(super) fn add(&mut self, at: usize, name: &str, findings: Findings) {
        for mut check in findings.checks {
            if let Status::Failed(failure) = &mut check.status {
                failure.what = format!("step {at} ({name}): {}", failure.what);
            }
            self.check(check);
        }
        if let Some(metrics) = findings.metrics {
            self.metrics = Some(match self.metrics.take() {
                Some(before) => both(before, metrics),
                None => metrics,
            });
        }
    }

    fn check(&mut self, check: Check) {
        let failed = usize::from(check.failure().is_some());
        let Some(known) = self.checks.iter_mut().find(|known| known.check.name == check.name) else {
            return self.checks.push(OfSteps { check, failed });
        };
        let is_news = match (&known.check.status, &check.status) {
            (Status::Failed(_), _) => false,
            (_, Status::Failed(_)) => true,
            (Status::NotPossible { .. }, Status::Passed) => true,
            _ => false,
        };
        known.failed += failed;
        if is_news {
            known.check = check;
        }
    }

    /// All of it. What passed on one step and was not possible on another has passed.
    pub(super) fn findings(self) -> Findings {
        let checks = self.checks.into_iter().map(|OfSteps { mut check, failed }| {
            if let (Status::Failed(failure), 2..) = (&mut check.status, failed) {
                failure.what = format!("{}; {} later step(s) fail it too", failure.what, failed - 1);
            }
            check
        });
        Findings { checks: checks.collect(), metrics: self.metrics }
    }
}

/// Sizes of errors over two outputs. Of two precision models the first is named.
fn both(a: Metrics, b: Metrics) -> Metrics {
    let (judged_a, judged_b) = ((a.elements - a.inconclusive) as f64, (b.elements - b.inconclusive) as f64);
    let judged = judged_a + judged_b;
    Metrics {
        elements: a.elements + b.elements,
        exact: a.exact + b.exact,
        inconclusive: a.inconclusive + b.inconclusive,
        ratio: a.ratio.max(b.ratio),
        power: if judged > 0.0 { (a.power * judged_a + b.power * judged_b) / judged } else { 0.0 },
        nmse: a.nmse.max(b.nmse),
        max_abs: a.max_abs.max(b.max_abs),
        max_rel: a.max_rel.max(b.max_rel),
        max_ulp: a.max_ulp.max(b.max_ulp),
        blind: a.blind && b.blind,
        model: a.model,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Failure;

    fn merged(steps: Vec<Vec<Check>>) -> Vec<Check> {
        let mut all = Merged::default();
        for (at, checks) in steps.into_iter().enumerate() {
            all.add(at, "up", Findings { checks, metrics: None });
        }
        all.findings().checks
    }

    fn failed(what: &str) -> Check {
        Check::failed("values", Failure::new(what))
    }

    #[test]
    fn the_first_wrong_step_is_named() {
        let none = || Check::not_possible("values", "nothing to compare");
        let checks = merged(vec![vec![none()], vec![Check::passed("values")], vec![none()]]);
        assert_eq!(checks, [Check::passed("values")]);
        let checks = merged(vec![vec![Check::passed("values")], vec![failed("a")], vec![failed("b")]]);
        assert_eq!(checks[0].failure().unwrap().what, "step 1 (up): a; 1 later step(s) fail it too");
        let checks = merged(vec![vec![none()], vec![Check::passed("written"), failed("a")]]);
        assert_eq!(checks[0].failure().unwrap().what, "step 1 (up): a");
        assert_eq!(checks[1], Check::passed("written"));
    }

    #[test]
    fn outputs_add_up() {
        let metrics = |elements, power, blind| Metrics { elements, power, blind, ..Metrics::default() };
        let sum = both(metrics(10, 1.0, true), metrics(30, 0.2, false));
        assert_eq!((sum.elements, sum.blind), (40, false));
        assert!((sum.power - 0.4).abs() < 1e-12);
    }
}
