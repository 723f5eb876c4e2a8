//! Running cases on devices: lanes of one thread each take cases from one queue; everything they learn leaves as
//! events.

mod lane;
mod memory;
mod pool;
mod prepare;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use conform_cases::case::Case;
use conform_cases::judge::REPEATS;

use crate::discover::Found;
use crate::expect::{self, Expectation};
use crate::result::CaseResult;
use crate::worker::{Limits, Memory, sys};

use lane::execute_case;
use pool::Pool;
pub use prepare::{Answer, Judged, Prepared};

/// What a run knows before it starts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Cases in flight at once.
    pub jobs: usize,
    /// What a worker may take to answer, beyond what the case's cost allows for.
    pub patience: Duration,
    /// Opening devices.
    pub limits: Limits,
    /// No new case starts after this.
    pub until: Option<Instant>,
    /// No new case starts after so many unexpected results.
    pub max_failures: Option<u64>,
    /// How often a case is run on the same inputs, beside the run of its steps one by one.
    pub repeats: usize,
    /// Known results, in the order in which they are tried.
    pub expectations: Vec<Expectation>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            jobs: default_jobs(),
            patience: Duration::from_secs(60),
            limits: Limits::default(),
            until: None,
            max_failures: None,
            repeats: REPEATS,
            expectations: Vec::new(),
        }
    }
}

/// One lane per core and one more, since a lane waits while its device computes, but no more than eight: a device's own
/// threads need room too.
fn default_jobs() -> usize {
    thread::available_parallelism().map_or(1, |n| (n.get() + 1).min(8))
}

/// What happens during a run, in the order in which it happens.
#[derive(Clone, Debug)]
pub enum Event {
    /// A case was judged on a device, or could not be. What was expected of it is written in it.
    Result(Box<CaseResult>),
    /// A case is done on all devices.
    CaseDone,
    /// A device will not be asked again, and why.
    Lost {
        /// Its key.
        device: String,
        /// One line.
        why: String,
        /// True if it worked before: it is wedged, and the machine may need a hand.
        wedged: bool,
    },
    /// A case could not be prepared here: too large for this machine, usually.
    Skipped {
        /// The id.
        case: String,
        /// One line.
        why: String,
    },
}

/// Runs every case on every device and returns when all is done. Events arrive at `events` as they happen; nobody
/// listening any more is a wish to stop.
///
/// The error is one line: no thread could be started.
pub fn run(
    settings: &Settings,
    devices: Vec<Found>,
    cases: impl Iterator<Item = Case> + Send,
    events: &Sender<Event>,
) -> Result<(), String> {
    let pools: Vec<Pool> = devices.into_iter().map(|found| Pool::new(found, settings.limits)).collect();
    let queue = Mutex::new(cases);
    let (failures, unheard) = (AtomicU64::new(0), AtomicBool::new(false));
    let next = || {
        let time_is_up = settings.until.is_some_and(|until| Instant::now() >= until);
        let enough = settings.max_failures.is_some_and(|most| failures.load(Ordering::Relaxed) >= most);
        if time_is_up || enough || unheard.load(Ordering::Relaxed) || pools.iter().all(Pool::is_lost) {
            return None;
        }
        queue.lock().ok()?.next()
    };
    sys::keep_freed_memory();
    let memory = Memory::default();
    let lane = || {
        while let Some(case) = next() {
            execute_case(&case, &pools, &memory, settings, &mut |mut event| {
                if let Event::Result(r) = &mut event {
                    expect::apply(&settings.expectations, r);
                    failures.fetch_add(u64::from(r.is_unexpected()), Ordering::Relaxed);
                }
                if events.send(event).is_err() {
                    unheard.store(true, Ordering::Relaxed);
                }
            });
        }
    };
    thread::scope(|scope| {
        let started: Vec<_> =
            (0..settings.jobs.max(1)).map(|_| thread::Builder::new().spawn_scoped(scope, lane)).collect();
        // Fewer lanes than asked for do the same work.
        match started.into_iter().find_map(Result::ok) {
            Some(_) => Ok(()),
            None => Err("cannot start a thread; the limit of processes (ulimit -u) may be too low".to_owned()),
        }
    })?;
    // The workers of all devices end at the same time, and not one after the other.
    pools.iter().for_each(Pool::dismiss);
    Ok(())
}
