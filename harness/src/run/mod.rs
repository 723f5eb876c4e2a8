//! Running cases on devices: lanes of one thread each take cases from one queue; everything they learn leaves as
//! events.

mod lane;
mod prepare;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use conform_cases::case::Case;

use crate::discover::Found;
use crate::expect::{self, Expectation};
use crate::result::CaseResult;
use crate::worker::Limits;

pub use lane::Lane;
pub use prepare::Prepared;

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
            expectations: Vec::new(),
        }
    }
}

/// One lane per core, but no more than eight: a device's own threads need room too.
fn default_jobs() -> usize {
    thread::available_parallelism().map_or(1, |n| n.get().min(8))
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

/// What lanes share about one device.
#[derive(Debug)]
pub struct Slot {
    /// What it is, and how to start a worker.
    pub found: Found,
    /// It will not be asked again.
    lost: AtomicBool,
    /// Failed cases that a fresh worker has confirmed.
    confirmed: AtomicU64,
}

impl Slot {
    /// A device nobody has asked yet.
    pub fn new(found: Found) -> Self {
        Slot { found, lost: AtomicBool::new(false), confirmed: AtomicU64::new(0) }
    }
}

/// Runs every case on every device and returns when all is done. Events arrive at `events` as they happen.
pub fn run(settings: &Settings, devices: Vec<Found>, cases: impl Iterator<Item = Case> + Send, events: &Sender<Event>) {
    let slots: Vec<Slot> = devices.into_iter().map(Slot::new).collect();
    let queue = Mutex::new(cases);
    let failures = AtomicU64::new(0);
    let next = || {
        let time_is_up = settings.until.is_some_and(|until| Instant::now() >= until);
        let enough = settings.max_failures.is_some_and(|most| failures.load(Ordering::Relaxed) >= most);
        let all_lost = slots.iter().all(|s| s.lost.load(Ordering::Relaxed));
        if time_is_up || enough || all_lost {
            return None;
        }
        queue.lock().ok()?.next()
    };
    thread::scope(|scope| {
        for _ in 0..settings.jobs.max(1) {
            scope.spawn(|| {
                let mut lane = Lane::new(settings, &slots);
                while let Some(case) = next() {
                    lane.execute(&case, &mut |mut event| {
                        if let Event::Result(r) = &mut event {
                            expect::apply(&settings.expectations, r);
                            failures.fetch_add(u64::from(r.is_unexpected()), Ordering::Relaxed);
                        }
                        // Nobody listens any more if the receiver is gone; the run ends all the same.
                        let _ = events.send(event);
                    });
                }
            });
        }
    });
}
