//! What became of one case on one device: a line of `results.jsonl`.

use std::fmt;

use conform_cases::case::Case;
use conform_cases::judge::{Check, Judgement, Metrics, Status};
use serde::{Deserialize, Serialize};

use crate::backend::DeviceMemory;
use crate::worker::Incident;

/// The verdict on one case on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Every check that was possible passed.
    Pass,
    /// A check failed, and failed again in a fresh worker.
    Fail,
    /// No check failed, but the case says nothing about this device.
    Inconclusive,
    /// The device says that it does not do this.
    Unsupported,
    /// The worker died of this case, twice.
    Crash,
    /// The worker was silent beyond the deadline, twice.
    Timeout,
    /// A check failed, and a fresh worker did not confirm it.
    Flaky,
    /// The device was lost on this case.
    Wedged,
}

impl Verdict {
    /// Every verdict, in the order of a summary.
    pub const ALL: [Verdict; 8] = [
        Verdict::Pass,
        Verdict::Fail,
        Verdict::Inconclusive,
        Verdict::Unsupported,
        Verdict::Crash,
        Verdict::Timeout,
        Verdict::Flaky,
        Verdict::Wedged,
    ];

    /// The word in results and summaries.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "fail",
            Verdict::Inconclusive => "inconclusive",
            Verdict::Unsupported => "unsupported",
            Verdict::Crash => "crash",
            Verdict::Timeout => "timeout",
            Verdict::Flaky => "flaky",
            Verdict::Wedged => "wedged",
        }
    }

    /// True if the device did something that a correct one never does. A flaky value is among them: the bounds hold
    /// for every run of a correct device, so one wrong answer is one too many.
    pub fn is_bad(self) -> bool {
        matches!(self, Verdict::Fail | Verdict::Crash | Verdict::Timeout | Verdict::Flaky | Verdict::Wedged)
    }

    /// True if the case says something about the device.
    pub fn is_judged(self) -> bool {
        !matches!(self, Verdict::Unsupported | Verdict::Inconclusive)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// What became of one case on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseResult {
    /// The case id.
    pub case: String,
    /// The device's key.
    pub device: String,
    /// The verdict.
    pub verdict: Verdict,
    /// False where the op's contract does not bind this device: a bad verdict is reported and nothing else.
    pub gating: bool,
    /// The right values are made of weights as the build under test decodes them.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub decoded_by_build: bool,
    /// Why, for verdicts that no check explains: one line.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub why: Option<String>,
    /// The reason of the expectation that this result meets.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expected: Option<String>,
    /// In what it differs from what was expected of it: one line.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unexpected: Option<String>,
    /// Every check that was made.
    pub checks: Vec<Check>,
    /// Sizes of errors.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub metrics: Option<Metrics>,
    /// What `conform replay` must be told beside the device: the build it is of.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub told: Option<String>,
    /// The memory of the device after the case, where its driver tells.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory: Option<DeviceMemory>,
    /// How often the device sorted slots by expert, in all runs together, where it counts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sorts: Option<u64>,
    /// Deaths on the way to this verdict that a fresh worker did not repeat.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub incidents: Vec<IncidentLine>,
    /// The last lines of a dead worker's output.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub log: Option<String>,
    /// Where the time went.
    pub times: Times,
}

/// A death that was not repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IncidentLine {
    /// Its kind.
    pub kind: String,
    /// One line.
    pub detail: String,
}

impl From<Incident> for IncidentLine {
    fn from(i: Incident) -> Self {
        IncidentLine { kind: i.kind.to_owned(), detail: i.detail }
    }
}

/// Where the time of a case went, in microseconds. The first two are spent once for all devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    /// Generating inputs.
    pub generate: u64,
    /// Computing the right values.
    pub oracle: u64,
    /// Allocating on the device.
    pub load: u64,
    /// Uploading inputs and poison.
    pub upload: u64,
    /// Executing steps.
    pub compute: u64,
    /// Reading back.
    pub read: u64,
    /// Judging.
    pub judge: u64,
}

impl CaseResult {
    /// The command that repeats a case here.
    pub fn replay(case: &str, device: &str, told: Option<&str>) -> String {
        let told = told.map(|told| format!(" {told}")).unwrap_or_default();
        format!("conform replay {case} --device {device}{told}")
    }

    /// A result without checks.
    pub fn bare(case: &str, device: &str, verdict: Verdict, why: Option<String>) -> Self {
        CaseResult {
            case: case.to_owned(),
            device: device.to_owned(),
            verdict,
            gating: true,
            decoded_by_build: false,
            why,
            expected: None,
            unexpected: None,
            checks: Vec::new(),
            metrics: None,
            told: None,
            memory: None,
            sorts: None,
            incidents: Vec::new(),
            log: None,
            times: Times::default(),
        }
    }

    /// Takes over what the judge found.
    #[must_use]
    pub fn judged(mut self, judgement: Judgement) -> Self {
        self.verdict = match () {
            () if judgement.failures().next().is_some() => Verdict::Fail,
            () if judgement.inconclusive.is_some() => Verdict::Inconclusive,
            () => Verdict::Pass,
        };
        self.why = judgement.inconclusive;
        self.checks = judgement.checks;
        self.metrics = judgement.metrics;
        self
    }

    /// The checks that failed.
    pub fn failed_checks(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|c| matches!(c.status, Status::Failed(_)))
    }

    /// True if this must fail a run: it is bad and nobody expected it, or it differs from what was expected.
    pub fn is_unexpected(&self) -> bool {
        let bad_news = self.verdict.is_bad() && self.expected.is_none();
        self.gating && (bad_news || self.unexpected.is_some())
    }

    /// What one bug's results have in common.
    pub fn signature(&self) -> Option<Signature> {
        if !self.verdict.is_bad() {
            return None;
        }
        let op = self.case.split('/').next().unwrap_or_default().to_owned();
        // A result read back from a file may name a case of another version.
        let case = self.case.parse::<Case>();
        let kind = case.map_or_else(|_| "?".to_owned(), |c| format!("{}:{}", c.body().group(), c.body().shape_class()));
        let first = self.failed_checks().next();
        let what = match (self.verdict, first) {
            // The same wrong number shows in one of three checks, depending on the data.
            (Verdict::Fail | Verdict::Flaky, Some(check)) if ["class", "exact"].contains(&&*check.name) => "values",
            (Verdict::Fail | Verdict::Flaky, Some(check)) => &check.name,
            (verdict, _) => verdict.word(),
        };
        let pattern = first.and_then(|c| c.failure()?.pattern.as_deref()).and_then(kind_of_pattern);
        let pattern = pattern.map(|p| format!(":{p}")).unwrap_or_default();
        Some(Signature { op, kind, what: format!("{what}{pattern}") })
    }
}

/// What one bug's results have in common. Its text has no spaces, so that `replay --like` takes it from a shell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signature {
    /// The op.
    pub op: String,
    /// Type and shape class.
    pub kind: String,
    /// The verdict or the failed check, and what the wrong values have in common.
    pub what: String,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.op, self.kind, self.what)
    }
}

/// What all wrong values have in common, without its numbers. Where they are is left out: in a small case one row or
/// one slot is a coincidence, and one bug would have many signatures.
fn kind_of_pattern(pattern: &str) -> Option<String> {
    let part = pattern.split(", ").find(|part| part.starts_with("all "))?;
    let words = part.split_whitespace().take_while(|w| w.chars().all(char::is_alphabetic));
    Some(words.collect::<Vec<_>>().join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::judge::Failure;

    fn failing(pattern: Option<&str>) -> CaseResult {
        let failure = Failure { what: String::new(), worst: None, pattern: pattern.map(str::to_owned) };
        let mut r = CaseResult::bare(
            "mul_mat_id/w=mxfp4,x=f32,e=1,u=1,m=1,n=2,k=32/route=one,data=wide/v1-1",
            "cpu",
            Verdict::Fail,
            None,
        );
        r.checks = vec![Check::passed("written"), Check::failed("values", failure)];
        r
    }

    #[test]
    fn signatures_keep_what_one_bug_has_in_common() {
        let signature = |pattern| failing(pattern).signature().unwrap().to_string();
        assert_eq!(signature(None), "mul_mat_id/mxfp4:many-tokens:values");
        assert_eq!(signature(Some("one row (63)")), signature(None));
        let scaled = signature(Some("two tokens (0, 1), all scaled by 1.0200"));
        assert_eq!(scaled, "mul_mat_id/mxfp4:many-tokens:values:all-scaled-by");
        let crash = CaseResult::bare("argsort/c=3/data=ties/v1-1", "cpu", Verdict::Crash, None);
        assert_eq!(crash.signature().unwrap().to_string(), "argsort/asc:short-rows:crash");
        let unknown = CaseResult::bare("new_op/c=3/data=ties/v1-1", "cpu", Verdict::Crash, None);
        assert_eq!(unknown.signature().unwrap().to_string(), "new_op/?:crash");
        assert_eq!(CaseResult::bare("a/b/c/d", "cpu", Verdict::Pass, None).signature(), None);
    }

    #[test]
    fn results_survive_json() {
        let mut r = failing(Some("every element"));
        r.checks.push(Check::not_possible("inputs", "not readable"));
        r.metrics = Some(Metrics { ratio: 0.1, ..Metrics::default() });
        let text = serde_json::to_string(&r).unwrap();
        assert_eq!(serde_json::from_str::<CaseResult>(&text).unwrap(), r);
    }

    #[test]
    fn what_gates() {
        for v in Verdict::ALL {
            let mut r = CaseResult::bare("a/b/c/d", "cpu", v, None);
            assert_eq!(r.is_unexpected(), v.is_bad());
            r.gating = false;
            assert!(!r.is_unexpected());
        }
    }
}
