//! Expectations in the head of a run, so that its files alone tell what came of them.

use serde::{Deserialize, Serialize};

use super::Expectation;
use crate::result::Verdict;
use crate::select::{Filter, device_glob};

/// An expectation as it was written, with where that was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    place: String,
    device: String,
    case: Vec<String>,
    verdict: Vec<Verdict>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    check: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    log: Vec<String>,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    link: Option<String>,
}

impl From<&Expectation> for Recorded {
    fn from(e: &Expectation) -> Self {
        Recorded {
            place: e.place.clone(),
            device: e.device.to_string(),
            case: e.cases.iter().map(|case| case.text().to_owned()).collect(),
            verdict: e.verdicts.clone(),
            check: e.checks.clone(),
            log: e.logs.clone(),
            reason: e.reason.clone(),
            link: e.link.clone(),
        }
    }
}

impl TryFrom<Recorded> for Expectation {
    type Error = String;

    fn try_from(r: Recorded) -> Result<Self, String> {
        Ok(Expectation {
            device: device_glob(&r.device)?,
            cases: r.case.iter().map(|case| Filter::new(case)).collect::<Result<_, _>>()?,
            place: r.place,
            verdicts: r.verdict,
            checks: r.check,
            logs: r.log,
            reason: r.reason,
            link: r.link,
        })
    }
}
