//! Expectations: known results, each with a reason, so that only what is new fails a run.
//!
//! An expectation names devices and cases by pattern, and the verdict they have.
//! Of several that speak of a result the first one decides, in the order of the
//! files on the command line and of the entries within each: an exception stands
//! above the rule. What is known must stay true: a result that differs from what
//! was expected of it, for better or worse, is unexpected and fails the run.

mod file;
mod recorded;

use glob::Pattern;

pub use file::read;
pub use recorded::Recorded;

use crate::result::{CaseResult, Verdict};
use crate::select::Filter;

/// A known result.
#[derive(Clone, Debug)]
pub struct Expectation {
    /// Where it is written: file and entry.
    pub place: String,
    /// The keys of its devices.
    pub device: Pattern,
    /// The ids of its cases: those that any of these selects.
    pub cases: Vec<Filter>,
    /// What comes out: any of these. [`Verdict::Flaky`] stands for what comes and goes: such a case may also pass, be
    /// inconclusive where a pass would say nothing, or fail twice.
    pub verdicts: Vec<Verdict>,
    /// The only checks that may fail, at least one of them; any where none is named. One bug often shows in several,
    /// and in which of them depends on the case.
    pub checks: Vec<String>,
    /// What the log of a worker that dies has, at least one of them; anything where none is named. An assertion's text
    /// tells one death from another.
    pub logs: Vec<String>,
    /// Why this is so.
    pub reason: String,
    /// Where to read more.
    pub link: Option<String>,
}

/// How a result compares with what was expected of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit<'a> {
    /// No expectation speaks of it: it is judged by itself.
    Unmentioned,
    /// It is what was expected, for this reason.
    Expected {
        /// The expectation's reason.
        reason: &'a str,
    },
    /// It is something else.
    Unexpected {
        /// What was expected, what came, and where the expectation is written: one line.
        why: String,
    },
}

impl Expectation {
    /// Whether it says anything about this device and case.
    pub fn speaks_of(&self, device: &str, case: &str) -> bool {
        self.device.matches(device) && self.cases.iter().any(|known| known.matches(case))
    }

    /// What is expected, in words: `fail of 'values'`, `pass or crash`.
    pub fn outcome(&self) -> String {
        let words: Vec<String> = self.verdicts.iter().map(Verdict::to_string).collect();
        let verdicts = words.join(" or ");
        let of = |what: &str, texts: &[String]| match texts {
            [] => String::new(),
            texts => format!(" {what} '{}'", texts.join("', '")),
        };
        verdicts + &of("of", &self.checks) + &of("with", &self.logs)
    }

    fn verdict_fits(&self, got: Verdict) -> bool {
        let comes_and_goes = matches!(got, Verdict::Pass | Verdict::Inconclusive | Verdict::Fail);
        self.verdicts.iter().any(|v| *v == got || *v == Verdict::Flaky && comes_and_goes)
    }

    /// True if the log of a worker that died has none of what was named.
    fn other_log(&self, result: &CaseResult) -> bool {
        let log = result.log.as_deref().unwrap_or_default();
        let is_dead = matches!(result.verdict, Verdict::Crash | Verdict::Timeout);
        is_dead && !self.logs.is_empty() && !self.logs.iter().any(|named| log.contains(named))
    }

    /// A failed check that was not named, where any was.
    fn other_check<'a>(&self, result: &'a CaseResult) -> Option<&'a str> {
        let mut failed = result.failed_checks().map(|c| &*c.name);
        failed.find(|name| !self.checks.is_empty() && !self.checks.iter().any(|named| named == name))
    }
}

/// What the log of a worker has that dies of this case as is expected of it, where that is known so well.
pub fn known_logs<'a>(expectations: &'a [Expectation], device: &str, case: &str) -> &'a [String] {
    expectations.iter().find(|e| e.speaks_of(device, case)).map_or(&[], |e| &e.logs)
}

/// Compares a result with the first expectation that speaks of it.
pub fn judge_expectation<'a>(expectations: &'a [Expectation], result: &CaseResult) -> Fit<'a> {
    let Some(e) = expectations.iter().find(|e| e.speaks_of(&result.device, &result.case)) else {
        return Fit::Unmentioned;
    };
    let but = match result.verdict {
        verdict if e.verdict_fits(verdict) => match e.other_check(result) {
            None if e.other_log(result) => {
                let log = result.log.as_deref().unwrap_or_default();
                let last = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
                format!("it ends with '{verdict}', and its log with '{}'", last.trim())
            }
            None => return Fit::Expected { reason: &e.reason },
            Some(other) => format!("'{other}' fails"),
        },
        Verdict::Pass => "it passes: remove the expectation".to_owned(),
        other => format!("it ends with '{other}'"),
    };
    Fit::Unexpected { why: format!("expected {}, but {but} ({})", e.outcome(), e.place) }
}

/// Writes into a result what was expected of it.
pub fn apply(expectations: &[Expectation], result: &mut CaseResult) {
    match judge_expectation(expectations, result) {
        Fit::Unmentioned => {}
        Fit::Expected { reason } => result.expected = Some(reason.to_owned()),
        Fit::Unexpected { why } => result.unexpected = Some(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::judge::{Check, Failure};

    /// `device case|… verdict|…[:check,…][:log]`, as the `n`-th entry of a file.
    fn expectation(n: usize, text: &str) -> Expectation {
        let [device, case, outcome] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{text}") };
        let mut outcome = outcome.split(':');
        let [verdicts, checks, log] = [(); 3].map(|()| outcome.next().unwrap_or_default());
        Expectation {
            place: format!("e.toml, entry {n}"),
            device: Pattern::new(device).unwrap(),
            cases: case.split('|').map(|case| Filter::new(case).unwrap()).collect(),
            verdicts: verdicts.split('|').map(verdict_of).collect(),
            logs: Some(log.to_owned()).filter(|log| !log.is_empty()).into_iter().collect(),
            checks: checks.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            reason: format!("reason {n}"),
            link: None,
        }
    }

    fn verdict_of(word: &str) -> Verdict {
        Verdict::ALL.into_iter().find(|v| v.word() == word).unwrap()
    }

    /// `verdict[:failed check,…]` of a case on `gpu-0`.
    fn result(text: &str) -> CaseResult {
        let (verdict, failed) = text.split_once(':').unwrap_or((text, ""));
        let mut r = CaseResult::bare("argsort/c=3/data=ties/v1-1", "gpu-0", verdict_of(verdict), None);
        r.checks.push(Check::passed("written"));
        let failed = failed.split(',').filter(|name| !name.is_empty());
        r.checks.extend(failed.map(|name| Check::failed(name, Failure::new("…"))));
        r.log = matches!(r.verdict, Verdict::Crash | Verdict::Timeout).then(|| "ASSERT(a) failed".to_owned());
        r
    }

    /// What comes of a result: `-` where no expectation speaks of it, the reason, or why it is unexpected.
    fn fit(expectations: &[&str], got: &str) -> String {
        let expectations: Vec<_> = expectations.iter().enumerate().map(|(i, e)| expectation(i + 1, e)).collect();
        match judge_expectation(&expectations, &result(got)) {
            Fit::Unmentioned => "-".to_owned(),
            Fit::Expected { reason } => reason.to_owned(),
            Fit::Unexpected { why } => why,
        }
    }

    #[test]
    fn what_fits() {
        const ANY: &str = "* * fail";
        const ORDER: &str = "gpu-* argsort/c=3 fail:order";
        for (expectations, got, want) in [
            // Who is spoken of: globs of devices, prefixes or globs of cases.
            (&[][..], "fail:order", "-"),
            (&["cpu * fail"], "fail:order", "-"),
            (&["gpu argsort fail"], "fail:order", "-"),
            (&["gpu-* top_k fail"], "fail:order", "-"),
            (&["gpu-* argsort fail"], "fail:order", "reason 1"),
            (&["gpu-? *data=ties* fail"], "fail:order", "reason 1"),
            (&["* top_k|argsort/c=3 fail"], "fail:order", "reason 1"),
            (&["* top_k|argsort/c=4 fail"], "fail:order", "-"),
            // The same verdict, and no check but the named one.
            (&[ANY], "fail:order,inputs", "reason 1"),
            (&[ORDER], "fail:order", "reason 1"),
            (&[ORDER], "fail:inputs", "expected fail of 'order', but 'inputs' fails (e.toml, entry 1)"),
            (&[ORDER], "fail:order,inputs", "expected fail of 'order', but 'inputs' fails (e.toml, entry 1)"),
            (&["* * fail:values,scale"], "fail:values", "reason 1"),
            (&["* * fail:values,scale"], "fail:values,scale", "reason 1"),
            (
                &["* * fail:values,scale"],
                "fail:values,bias",
                "expected fail of 'values', 'scale', but 'bias' fails (e.toml, entry 1)",
            ),
            // Another verdict, for better or worse.
            (&[ORDER], "pass", "expected fail of 'order', but it passes: remove the expectation (e.toml, entry 1)"),
            (&[ANY], "pass", "expected fail, but it passes: remove the expectation (e.toml, entry 1)"),
            (&[ANY], "crash", "expected fail, but it ends with 'crash' (e.toml, entry 1)"),
            (&[ANY], "flaky:order", "expected fail, but it ends with 'flaky' (e.toml, entry 1)"),
            (&[ANY], "unsupported", "expected fail, but it ends with 'unsupported' (e.toml, entry 1)"),
            (&[ANY], "wedged", "expected fail, but it ends with 'wedged' (e.toml, entry 1)"),
            (&["* * crash"], "crash", "reason 1"),
            (&["* * timeout"], "crash", "expected timeout, but it ends with 'crash' (e.toml, entry 1)"),
            (&["* * unsupported"], "unsupported", "reason 1"),
            (
                &["* * unsupported"],
                "pass",
                "expected unsupported, but it passes: remove the expectation (e.toml, entry 1)",
            ),
            // What comes and goes.
            (&["* * flaky:order"], "flaky:order", "reason 1"),
            (&["* * flaky:order"], "fail:order", "reason 1"),
            (&["* * flaky:order"], "pass", "reason 1"),
            (&["* * flaky:order"], "inconclusive", "reason 1"),
            (&["* * flaky:order"], "flaky:inputs", "expected flaky of 'order', but 'inputs' fails (e.toml, entry 1)"),
            (&["* * flaky"], "crash", "expected flaky, but it ends with 'crash' (e.toml, entry 1)"),
            // One of several.
            (&["* * pass|crash"], "pass", "reason 1"),
            (&["* * pass|crash"], "crash", "reason 1"),
            (&["* * crash|fail:order"], "fail:order", "reason 1"),
            (
                &["* * crash|fail:order"],
                "fail:inputs",
                "expected crash or fail of 'order', but 'inputs' fails (e.toml, entry 1)",
            ),
            (&["* * flaky|crash"], "pass", "reason 1"),
            (&["* * flaky|crash"], "timeout", "expected flaky or crash, but it ends with 'timeout' (e.toml, entry 1)"),
            // What a dead worker left behind.
            (&["* * crash::ASSERT(a)"], "crash", "reason 1"),
            (
                &["* * crash::ASSERT(b)"],
                "crash",
                "expected crash with 'ASSERT(b)', but it ends with 'crash', and its log with 'ASSERT(a) failed' (e.toml, entry 1)",
            ),
            (&["* * fail|crash::ASSERT(b)"], "fail:order", "reason 1"),
            // The first that speaks of a result decides, fit or not: an exception stands above the rule.
            (&["cpu * fail", ANY], "fail:order", "reason 2"),
            (&["* argsort/c=3 pass", "* argsort fail"], "pass", "reason 1"),
            (
                &["* argsort/c=3 pass", "* argsort fail"],
                "fail:order",
                "expected pass, but it ends with 'fail' (e.toml, entry 1)",
            ),
            (&["* * crash", ANY], "fail:order", "expected crash, but it ends with 'fail' (e.toml, entry 1)"),
        ] {
            assert_eq!(fit(expectations, got), want, "{expectations:?} {got}");
        }
    }

    #[test]
    fn what_gates() {
        let gates = |expected: &str, got: &str, gating: bool| {
            let mut r = CaseResult { gating, ..result(got) };
            apply(&[expectation(1, expected)], &mut r);
            r.is_unexpected()
        };
        assert!(!gates("* * fail", "fail:order", true));
        assert!(gates("* * fail", "pass", true));
        assert!(gates("* * fail:inputs", "fail:order", true));
        assert!(gates("cpu * fail", "fail:order", true));
        // Where the contract does not bind a device, nothing does.
        assert!(!gates("* * fail", "pass", false));
    }
}
