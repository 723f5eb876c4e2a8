//! Probing devices: exact cases run by workers like any other, and judged here as if the device lost nothing. What
//! survives says what arithmetic the device has; the table's model is then set beside it.

use std::time::Duration;

use conform_cases::case::Case;
use conform_cases::formats::ElemType;
use conform_cases::model::probe::{Observed, Standing, Statement, TOKENS, cases, ideal, survived};
use serde::Serialize;

use crate::discover::Found;
use crate::run::Prepared;
use crate::worker::protocol::Outcome;
use crate::worker::{Attempt, Limits, Memory, Supervisor};

/// What a device shows for one weight type and number of tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shown {
    /// Weight type.
    #[serde(rename = "w")]
    pub weights: ElemType,
    /// Tokens.
    #[serde(rename = "n")]
    pub tokens: usize,
    /// What was seen, in words.
    pub seen: String,
    /// The same, aspect by aspect.
    pub statement: Statement,
    /// The table's model beside it.
    #[serde(flatten)]
    pub standing: Standing,
    /// Why not every case had an answer: one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What a device shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Probed {
    /// The device's key.
    pub device: String,
    /// By weight type and number of tokens; types that it does not support are left out.
    pub shown: Vec<Shown>,
    /// Why the device was not asked any more: one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// True if it worked before it was lost.
    pub wedged: bool,
}

/// What became of one case.
enum Answer {
    /// It was computed, with or without losing a bit.
    Survived(bool),
    /// The device does not do this.
    Unsupported,
    /// It says nothing about arithmetic: one line.
    Nothing(String),
    /// The device is gone.
    Lost { why: String, wedged: bool },
}

/// Probes one device. `progress` hears of each weight type before it is asked about.
pub fn probe(found: &Found, patience: Duration, limits: Limits, progress: &mut dyn FnMut(ElemType)) -> Probed {
    let mut supervisor = Supervisor::new(found.launch.clone(), &found.info.key, limits);
    let mut probed = Probed { device: found.info.key.clone(), shown: Vec::new(), lost: None, wedged: false };
    for weights in ElemType::WEIGHTS {
        progress(weights);
        for tokens in TOKENS {
            match ask(&mut supervisor, found, weights, tokens, patience) {
                Ok(shown) => probed.shown.extend(shown),
                Err((why, wedged)) => {
                    (probed.lost, probed.wedged) = (Some(why), wedged);
                    return probed;
                }
            }
        }
    }
    probed
}

/// One weight type and number of tokens: `None` where it is not supported. The error is why the device is lost, and
/// whether it worked before.
fn ask(
    supervisor: &mut Supervisor,
    found: &Found,
    weights: ElemType,
    tokens: usize,
    patience: Duration,
) -> Result<Option<Shown>, (String, bool)> {
    let (mut observed, mut why, mut model) = (Observed::default(), None, None);
    let cases = cases(weights, tokens).map_err(|e| (e.to_string(), false))?;
    for (recipe, case) in cases {
        match execute(supervisor, found, &case, patience) {
            Answer::Survived(yes) => observed.note(recipe, yes),
            Answer::Unsupported => return Ok(None),
            Answer::Lost { why, wedged } => return Err((why, wedged)),
            Answer::Nothing(reason) => {
                // A worker that dies of one of these cases would die of the next.
                why = Some(format!("{}: {reason}", case.id()));
                break;
            }
        }
        model = case.body().model(&found.info.capabilities);
    }
    let statement = Statement::of(&observed);
    let standing = match &model {
        Some(model) => statement.beside(found.info.capabilities.kernels, model),
        None => Standing::Unseen,
    };
    Ok(Some(Shown { weights, tokens, seen: statement.to_string(), statement, standing, why }))
}

fn execute(supervisor: &mut Supervisor, found: &Found, case: &Case, patience: Duration) -> Answer {
    let device = ideal(&found.info.capabilities);
    let prepared = match Prepared::new(case, vec![device], &Memory::default()) {
        Ok(prepared) => prepared,
        Err(why) => return Answer::Nothing(why),
    };
    let mut results = match prepared.results() {
        Ok(results) => results,
        Err(why) => return Answer::Nothing(why),
    };
    let observed = match supervisor.attempt(&mut prepared.job(&mut results, patience)) {
        Attempt::Ran { outcome: Outcome::Done {}, observed, .. } => observed,
        Attempt::Ran { outcome: Outcome::Unsupported { .. }, .. } => return Answer::Unsupported,
        Attempt::Ran { outcome: Outcome::Failed { stage, why }, .. } => {
            return Answer::Nothing(format!("failed in {stage}: {why}"));
        }
        Attempt::Died(death) => return Answer::Nothing(death.to_string()),
        Attempt::Unavailable(why) => return Answer::Lost { why, wedged: false },
        Attempt::Wedged(why) => return Answer::Lost { why, wedged: true },
    };
    match survived(&prepared.judge(&device, &results, &observed).judgement) {
        Ok(yes) => Answer::Survived(yes),
        Err(why) => Answer::Nothing(why),
    }
}
