//! A lane: one thread that takes a case through all devices, one after the other, while the oracle computes beside
//! the first.

use std::thread;
use std::time::Duration;

use conform_cases::case::Case;
use conform_cases::inputs::Decoded;
use conform_cases::judge::{Check, Failure};

use super::pool::Pool;
use super::prepare::Judged;
use super::{Event, Prepared, Settings};
use crate::expect;
use crate::result::{CaseResult, IncidentLine, Times, Verdict};
use crate::worker::protocol::{Observed, Outcome, Times as WorkerTimes};
use crate::worker::{Attempt, Cause, Death, Job, Memory, NoDevice, Shared, Supervisor};

/// Failed cases of one device that are repeated in a fresh worker. A device that has failed so often is broken, and
/// repeating the rest would only cost time.
const CONFIRMATIONS: u64 = 25;

/// What one execution came to.
struct Execute {
    /// What was seen, if anything was.
    result: Option<Box<CaseResult>>,
    /// The device was lost on the way.
    lost: Option<NoDevice>,
}

impl Execute {
    fn seen(result: CaseResult) -> Self {
        Execute { result: Some(Box::new(result)), lost: None }
    }

    fn lost(none: NoDevice) -> Self {
        Execute { result: None, lost: Some(none) }
    }
}

/// Takes a case through all devices.
pub(super) fn execute_case(
    case: &Case,
    pools: &[Pool],
    memory: &Memory,
    settings: &Settings,
    emit: &mut dyn FnMut(Event),
) {
    let devices = pools.iter().map(|pool| pool.found.info.capabilities).collect();
    let prepared = match Prepared::repeated(case, devices, memory, settings.repeats) {
        Ok(prepared) => prepared,
        Err(why) => return emit(Event::Skipped { case: case.id(), why }),
    };
    thread::scope(|scope| {
        // Without a thread, or where the weights are not known yet, the oracle computes when the first device has
        // answered.
        if !prepared.is_decoded_by_build() {
            let _ = thread::Builder::new().spawn_scoped(scope, || prepared.answer(Decoded::default()));
        }
        pools.iter().for_each(|pool| on_device(pool, &prepared, settings, emit));
    });
    emit(Event::CaseDone);
}

fn on_device(pool: &Pool, prepared: &Prepared, settings: &Settings, emit: &mut dyn FnMut(Event)) {
    let device = &pool.found.info.key;
    let mut results = match prepared.results() {
        Ok(results) => results,
        Err(why) => return emit(Event::Skipped { case: prepared.case.id(), why }),
    };
    let _held = pool.reserve(prepared.device_bytes());
    while let Some(mut supervisor) = pool.take() {
        let Execute { result, lost } = execute(&mut supervisor, pool, prepared, &mut results, settings);
        let has_result = result.is_some();
        if let Some(result) = result {
            emit(Event::Result(result));
        }
        let Some(none) = lost else {
            return pool.give(supervisor);
        };
        let (why, wedged) = match &none {
            NoDevice::Unavailable(why) => (why.clone(), false),
            NoDevice::Wedged(why) => (why.clone(), true),
        };
        if wedged {
            results.abandon();
            prepared.inputs.abandon();
        }
        if pool.give_up(none) {
            if wedged && !has_result {
                let result = CaseResult::bare(&prepared.plan.case, device, Verdict::Wedged, Some(why.clone()));
                emit(Event::Result(Box::new(result)));
            }
            emit(Event::Lost { device: device.clone(), why, wedged });
        }
        if has_result {
            return;
        }
    }
}

/// Executes and judges, and repeats a failure in a fresh worker before it is believed.
fn execute(
    supervisor: &mut Supervisor,
    pool: &Pool,
    prepared: &Prepared,
    results: &mut Shared,
    settings: &Settings,
) -> Execute {
    let device = &pool.found.info.key;
    let known_logs = expect::known_logs(&settings.expectations, device, &prepared.plan.case);
    let mut job = Job { known_logs, ..prepared.job(results, settings.patience) };
    let attempt = supervisor.attempt(&mut job);
    let first = match judged(attempt, pool, prepared, job.results) {
        Execute { result: Some(first), lost: None } if first.verdict == Verdict::Fail => first,
        other => return other,
    };
    if pool.confirmed() >= CONFIRMATIONS {
        return Execute::seen(*first);
    }
    let attempt = supervisor.confirm(&mut job);
    match judged(attempt, pool, prepared, job.results) {
        Execute { result: Some(second), .. } if second.verdict == Verdict::Fail => {
            // What the contract leaves open says nothing against a device, and must not use up the repeats.
            if second.gating {
                pool.confirm();
            }
            Execute::seen(*second)
        }
        Execute { result: Some(second), .. } => {
            // The wrong answer was seen: it is reported with its own checks, under the name that says how often.
            let why = format!("failed once, then ended with '{}' in a fresh worker", second.verdict);
            Execute::seen(CaseResult { verdict: Verdict::Flaky, why: Some(why), ..*first })
        }
        // It was seen, and the device is gone before it could be seen twice.
        Execute { result: None, lost } => Execute { result: Some(first), lost },
    }
}

fn judged(attempt: Attempt, pool: &Pool, prepared: &Prepared, results: &Shared) -> Execute {
    let info = &pool.found.info;
    let own = info.capabilities.kernels.is_own();
    let (mut result, worker_times) = match attempt {
        Attempt::Unavailable(why) => return Execute::lost(NoDevice::Unavailable(why)),
        Attempt::Wedged(why) => return Execute::lost(NoDevice::Wedged(why)),
        Attempt::Died(death) => (died(prepared, &info.key, death), WorkerTimes::default()),
        Attempt::Ran { outcome, times, memory, observed, incident } => {
            if let Some(memory) = memory {
                pool.told(memory, prepared.device_bytes());
            }
            let mut result = match outcome {
                Outcome::Unsupported { why } => {
                    CaseResult::bare(&prepared.plan.case, &info.key, Verdict::Unsupported, Some(why))
                }
                Outcome::Failed { stage, why } => {
                    let mut r = CaseResult::bare(&prepared.plan.case, &info.key, Verdict::Fail, None);
                    let what = format!("the device accepted the case, then failed in {stage}: {why}");
                    r.checks = vec![Check::failed("support", Failure::new(what))];
                    r
                }
                Outcome::Done {} => judge_bytes(pool, prepared, results, &observed),
            };
            result.memory = memory;
            result.sorts = observed.sorts;
            result.incidents = incident.into_iter().map(IncidentLine::from).collect();
            (result, times)
        }
    };
    result.told = pool.found.told.clone();
    result.gating = own || prepared.case.body().binds_foreign_devices();
    result.times = Times {
        generate: micros(prepared.generate),
        load: worker_times.load,
        upload: worker_times.upload,
        compute: worker_times.compute,
        read: worker_times.read,
        ..result.times
    };
    Execute::seen(result)
}

fn judge_bytes(pool: &Pool, prepared: &Prepared, results: &Shared, observed: &Observed) -> CaseResult {
    let device = &pool.found.info.capabilities;
    let Judged { mut judgement, oracle, judge } = prepared.judge(device, results, observed);
    judgement.checks.insert(0, Check::passed("support"));
    let mut result = CaseResult::bare(&prepared.plan.case, &pool.found.info.key, Verdict::Pass, None).judged(judgement);
    result.decoded_by_build = prepared.is_decoded_by_build();
    result.times.oracle = micros(oracle);
    result.times.judge = micros(judge);
    result
}

fn died(prepared: &Prepared, device: &str, death: Death) -> CaseResult {
    let verdict = if matches!(death.cause, Cause::Silent { .. }) { Verdict::Timeout } else { Verdict::Crash };
    let mut result = CaseResult::bare(&prepared.plan.case, device, verdict, Some(death.cause.to_string()));
    result.log = (!death.log.trim().is_empty()).then_some(death.log);
    result
}

fn micros(d: Duration) -> u64 {
    d.as_micros() as u64
}
