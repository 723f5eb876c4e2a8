//! A lane: one thread and at most one worker per device. It takes a case through all devices, one after the other,
//! while the oracle computes beside the first.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use conform_cases::case::Case;
use conform_cases::cost::Cost;
use conform_cases::judge::{Check, Execution, Failure, POISONS, judge};
use conform_cases::model::Kernels;

use super::{Event, Prepared, Settings, Slot};
use crate::result::{CaseResult, IncidentLine, Times, Verdict};
use crate::worker::protocol::{Outcome, Times as WorkerTimes};
use crate::worker::{Attempt, Cause, Death, Job, NoDevice, Shared, Supervisor};

/// Failed cases of one device that are repeated in a fresh worker. A device that has failed so often is broken, and
/// repeating the rest would only cost time.
const CONFIRMATIONS: u64 = 25;

/// One thread's view of a run.
pub struct Lane<'a> {
    settings: &'a Settings,
    slots: &'a [Slot],
    supervisors: BTreeMap<usize, Supervisor>,
}

/// What one execution came to.
enum Execute {
    Result(Box<CaseResult>),
    NoDevice(NoDevice),
}

impl<'a> Lane<'a> {
    /// A lane without workers; they start when they are first needed.
    pub fn new(settings: &'a Settings, slots: &'a [Slot]) -> Self {
        Lane { settings, slots, supervisors: BTreeMap::new() }
    }

    /// Takes a case through all devices.
    pub fn execute(&mut self, case: &Case, emit: &mut dyn FnMut(Event)) {
        let prepared = match Prepared::new(case) {
            Ok(prepared) => prepared,
            Err(why) => return emit(Event::Skipped { case: case.id(), why }),
        };
        thread::scope(|scope| {
            scope.spawn(|| prepared.oracle());
            for index in 0..self.slots.len() {
                if !self.slots[index].lost.load(Ordering::Relaxed) {
                    self.on_device(index, &prepared, emit);
                }
            }
        });
        emit(Event::CaseDone);
    }

    fn on_device(&mut self, index: usize, prepared: &Prepared, emit: &mut dyn FnMut(Event)) {
        let slots = self.slots;
        let slot = &slots[index];
        let device = &slot.found.info.key;
        let mut results = match Shared::create(prepared.layout.result_bytes) {
            Ok(results) => results,
            Err(e) => return emit(Event::Skipped { case: prepared.case.id(), why: e.to_string() }),
        };
        let settings = self.settings;
        let supervisor = self
            .supervisors
            .entry(index)
            .or_insert_with(|| Supervisor::new(slot.found.launch.clone(), device, settings.limits));
        let execute = execute(supervisor, slot, prepared, &mut results, settings);
        match execute {
            Execute::Result(result) => emit(Event::Result(result)),
            Execute::NoDevice(none) => {
                // Only the first lane to notice says so.
                if slot.lost.swap(true, Ordering::Relaxed) {
                    return;
                }
                let (why, wedged) = match none {
                    NoDevice::Unavailable(why) => (why, false),
                    NoDevice::Wedged(why) => (why, true),
                };
                if wedged {
                    let result = CaseResult::bare(&prepared.plan.case, device, Verdict::Wedged, Some(why.clone()));
                    emit(Event::Result(Box::new(result)));
                }
                emit(Event::Lost { device: device.clone(), why, wedged });
            }
        }
    }
}

/// Executes and judges, and repeats a failure in a fresh worker before it is believed.
fn execute(
    supervisor: &mut Supervisor,
    slot: &Slot,
    prepared: &Prepared,
    results: &mut Shared,
    settings: &Settings,
) -> Execute {
    let deadline = deadline(settings.patience, prepared.case.body().cost());
    let mut job = Job {
        plan: &prepared.plan,
        layout: &prepared.layout,
        poisons: &POISONS,
        inputs: &prepared.inputs,
        results,
        deadline,
    };
    let attempt = supervisor.attempt(&mut job);
    let first = match judged(attempt, slot, prepared, job.results) {
        Execute::Result(first) if first.verdict == Verdict::Fail => first,
        other => return other,
    };
    if slot.confirmed.load(Ordering::Relaxed) >= CONFIRMATIONS {
        return Execute::Result(first);
    }
    let attempt = supervisor.confirm(&mut job);
    let second = match judged(attempt, slot, prepared, job.results) {
        Execute::Result(second) => second,
        none @ Execute::NoDevice(_) => return none,
    };
    if second.verdict == Verdict::Fail {
        slot.confirmed.fetch_add(1, Ordering::Relaxed);
        return Execute::Result(second);
    }
    // The wrong answer was seen: it is reported with its own checks, under the name that says how often.
    let why = format!("failed once, then ended with '{}' in a fresh worker", second.verdict);
    Execute::Result(Box::new(CaseResult { verdict: Verdict::Flaky, why: Some(why), ..*first }))
}

/// What a device may take: the patience for compiling and waiting, and ten times what the slowest healthy one needs.
fn deadline(patience: Duration, cost: Cost) -> Duration {
    patience + Duration::from_secs_f64(cost.allowance_seconds() * POISONS.len() as f64)
}

fn judged(attempt: Attempt, slot: &Slot, prepared: &Prepared, results: &Shared) -> Execute {
    let info = &slot.found.info;
    let own = info.capabilities.kernels == Kernels::Own;
    let (mut result, worker_times) = match attempt {
        Attempt::Unavailable(why) => return Execute::NoDevice(NoDevice::Unavailable(why)),
        Attempt::Wedged(why) => return Execute::NoDevice(NoDevice::Wedged(why)),
        Attempt::Died(death) => (died(prepared, &info.key, death), WorkerTimes::default()),
        Attempt::Ran { outcome, times, incident } => {
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
                Outcome::Done {} => judge_bytes(slot, prepared, results),
            };
            result.incidents = incident.into_iter().map(IncidentLine::from).collect();
            (result, times)
        }
    };
    result.gating = own || prepared.case.body().binds_foreign_devices();
    result.times = Times {
        generate: micros(prepared.generate),
        load: worker_times.load,
        upload: worker_times.upload,
        compute: worker_times.compute,
        read: worker_times.read,
        ..result.times
    };
    Execute::Result(Box::new(result))
}

fn judge_bytes(slot: &Slot, prepared: &Prepared, results: &Shared) -> CaseResult {
    let info = &slot.found.info;
    let (oracle, oracle_time) = prepared.oracle();
    let started = Instant::now();
    let execution = Execution {
        plan: &prepared.plan,
        layout: &prepared.layout,
        inputs: prepared.inputs.bytes(),
        results: results.bytes(),
    };
    let mut judgement = judge(&info.capabilities, oracle, &execution);
    judgement.checks.insert(0, Check::passed("support"));
    let mut result = CaseResult::bare(&prepared.plan.case, &info.key, Verdict::Pass, None).judged(judgement);
    result.times.oracle = micros(oracle_time);
    result.times.judge = micros(started.elapsed());
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
