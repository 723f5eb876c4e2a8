//! Hunting a mutant: cases in the order of a profile, until one fails on it.
//!
//! A failure counts only where the same case passes on the device without the
//! fault. A death of the worker, seen twice, is a failure like any other: that
//! is what running a driver in a process of its own is for.

use std::time::Duration;

use conform_cases::case::Case;
use conform_cases::judge::Check;

use super::{Mutant, STATE};
use crate::backend::Capabilities;
use crate::discover::Found;
use crate::identity::{Rules, random};
use crate::run::Prepared;
use crate::worker::protocol::Outcome;
use crate::worker::{Attempt, Cause, Limits, Memory, Supervisor};

/// A mutated device and the same device without the fault, each with a worker.
pub struct Pair {
    /// With the fault.
    pub mutated: Supervisor,
    /// Without.
    pub healthy: Supervisor,
    /// What both are judged as.
    pub judged_as: Capabilities,
    /// How long either may take for a small case.
    pub patience: Duration,
}

/// How a hunt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Hunted {
    /// A case tells the two apart.
    Killed(Kill),
    /// No case did.
    Survived {
        /// Cases tried.
        cases: u64,
        /// Those of them that the mutated device was judged on. Without any, it does nothing that the fault could spoil.
        judged: u64,
        /// Those that failed on the mutant, and did not pass without the fault either.
        unproven: u64,
    },
    /// The mutant can't be hunted: it does not compile, for example.
    Broken(Unusable),
}

/// Why nothing can be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// One line.
    pub why: String,
    /// The device worked before, and the machine may need a hand.
    pub wedged: bool,
}

impl From<String> for Unusable {
    fn from(why: String) -> Self {
        Unusable { why, wedged: false }
    }
}

/// The first case that tells a mutant from the device it was made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Kill {
    /// Its id.
    pub case: String,
    /// The check that failed first; `crash` or `timeout` where the worker died.
    pub check: String,
    /// What that check found, in one line.
    pub failure: String,
    /// Its place in the profile, from 1: every case before it was in vain. Those of other ops, which the fault cannot
    /// touch, are counted and not run.
    pub cases: u64,
}

/// Draws tables of devices until wrong rules tell the devices of one apart wrongly.
pub fn on_tables(change: fn(&mut Rules), seed: u64, tables: u64) -> Hunted {
    let mut wrong = Rules::default();
    change(&mut wrong);
    let (mut cases, mut unproven) = (0, 0);
    for table in (0..tables).map(|i| seed.wrapping_add(i)) {
        cases += 1;
        match (random::trial(table, &wrong), random::trial(table, &Rules::default())) {
            (Ok(()), _) => {}
            (Err(_), Err(_)) => unproven += 1,
            (Err(failure), Ok(())) => {
                let (case, check) = (format!("table {table}"), "identity".to_owned());
                return Hunted::Killed(Kill { case, check, failure: failure.to_string(), cases });
            }
        }
    }
    Hunted::Survived { cases, judged: cases, unproven }
}

/// What a case shows of one device.
enum Shown {
    /// Nothing wrong.
    Good,
    /// The checks that failed, and what each found.
    Bad(Vec<[String; 2]>),
    /// The case says nothing about the device.
    Nothing,
}

impl Pair {
    /// Workers for a device and for the same with a fault. Starts nothing yet.
    pub fn new(device: &Found, mutant: &Mutant, patience: Duration) -> Self {
        let worker = || Supervisor::new(device.launch.clone(), &device.info.key, Limits::default());
        let judged_as = mutant.judged_as(&device.info);
        Pair { mutated: worker().mutated(mutant.id), healthy: worker(), judged_as, patience }
    }

    /// Runs cases until one fails on the mutated device and passes on the healthy one.
    pub fn hunt(&mut self, mutant: &Mutant, cases: impl Iterator<Item = Case>, memory: &Memory) -> Hunted {
        let (mut count, mut judged, mut unproven) = (0, 0, 0);
        for case in cases {
            count += 1;
            if !mutant.may_show(&case, &self.judged_as) {
                continue;
            }
            match self.differs(mutant, &case, memory) {
                Ok(Differs::By([check, failure])) => {
                    return Hunted::Killed(Kill { case: case.id(), check, failure, cases: count });
                }
                Ok(Differs::Unproven) => (judged, unproven) = (judged + 1, unproven + 1),
                Ok(Differs::No) => judged += 1,
                Ok(Differs::NotJudged) => {}
                Err(unusable) => return Hunted::Broken(unusable),
            }
        }
        Hunted::Survived { cases: count, judged, unproven }
    }

    fn differs(&mut self, mutant: &Mutant, case: &Case, memory: &Memory) -> Result<Differs, Unusable> {
        let prepare = |case: &Case| Prepared::new(case, vec![self.judged_as], memory);
        let prepared = prepare(&mutant.with_fault(case))?;
        let checks = match show(&mut self.mutated, &prepared, &self.judged_as, self.patience)? {
            Shown::Bad(checks) => checks,
            Shown::Good => return Ok(Differs::No),
            Shown::Nothing => return Ok(Differs::NotJudged),
        };
        let Some(check) = checks.into_iter().find(|[check, _]| mutant.counts(check, &self.judged_as)) else {
            return Ok(Differs::No);
        };
        let prepared = if mutant.op == STATE { prepare(case)? } else { prepared };
        Ok(match show(&mut self.healthy, &prepared, &self.judged_as, self.patience)? {
            Shown::Good => Differs::By(check),
            _ => Differs::Unproven,
        })
    }
}

/// Whether a case tells the mutated device from the healthy one.
enum Differs {
    /// By the check that failed first, and what it found.
    By([String; 2]),
    /// It failed on both, or says nothing about the healthy one.
    Unproven,
    /// It passes with the fault.
    No,
    /// It says nothing about the mutated device.
    NotJudged,
}

/// Executes a case on one device and judges it.
fn show(
    supervisor: &mut Supervisor,
    prepared: &Prepared,
    judged_as: &Capabilities,
    patience: Duration,
) -> Result<Shown, Unusable> {
    let mut results = prepared.results()?;
    let observed = match supervisor.attempt(&mut prepared.job(&mut results, patience)) {
        Attempt::Ran { outcome: Outcome::Done {}, observed, .. } => observed,
        Attempt::Ran { outcome: Outcome::Unsupported { .. }, .. } => return Ok(Shown::Nothing),
        // It accepted the case and did not run it.
        Attempt::Ran { outcome: Outcome::Failed { why, .. }, .. } => {
            return Ok(Shown::Bad(vec![["support".into(), why]]));
        }
        Attempt::Died(death) => {
            let check = if matches!(death.cause, Cause::Silent(_)) { "timeout" } else { "crash" };
            return Ok(Shown::Bad(vec![[check.to_owned(), death.to_string()]]));
        }
        Attempt::Unavailable(why) => return Err(why.into()),
        Attempt::Wedged(why) => {
            results.abandon();
            prepared.inputs.abandon();
            return Err(Unusable { why, wedged: true });
        }
    };
    let judgement = prepared.judge(judged_as, &results, &observed).judgement;
    let told = |check: &Check| [check.name.clone(), check.failure().map(|f| f.what.clone()).unwrap_or_default()];
    let failed: Vec<[String; 2]> = judgement.failures().map(told).collect();
    Ok(match failed.is_empty() {
        false => Shown::Bad(failed),
        true if judgement.inconclusive.is_some() => Shown::Nothing,
        true => Shown::Good,
    })
}
