//! One device's worker, with restarts, and what may be believed of its deaths.
//!
//! A driver that dies says little about the case in hand: an earlier case may
//! have broken it, or the machine ran out of memory. So a death counts when a
//! fresh worker that runs the same case alone dies too; otherwise the repeat's
//! answer stands, and the death is returned beside it to be counted and printed.
//! A death that is known, by what its log has, needs no repeat.

use std::thread;
use std::time::Duration;

use conform_cases::judge::one_by_one;
use conform_cases::plan::{Layout, Plan};

use super::protocol::{Observed, Outcome, Reply, Request, Run, Times};
use super::{Cause, Death, Launch, OpenError, Shared, Worker};
use crate::backend::{DeviceInfo, DeviceMemory};

/// Deaths on one case that are believed: the first, and a repeat in a fresh worker.
const BELIEVED_DEATHS: u32 = 2;

/// The same for SIGKILL, which comes from outside: the first and three repeats.
const BELIEVED_KILLS: u32 = 4;

/// Attempts in a row to open a device for the first time.
const FIRST_OPENINGS: u32 = 2;

/// Attempts in a row to open a device that was open before.
const REOPENINGS: u32 = 5;

/// Attempts in a row that may end by SIGKILL without counting as above.
const OPENING_KILLS: u32 = 20;

/// How long things may take, and how much one worker may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Starting a worker and opening a device, each: drivers compile and allocate here.
    pub open: Duration,
    /// Pause after the second failed opening in a row, growing: a GPU that is being reset needs a moment.
    pub pause: Duration,
    /// Cases after which a worker is replaced by a fresh one: for drivers that break with use.
    pub cases: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { open: Duration::from_secs(60), pause: Duration::from_millis(250), cases: None }
    }
}

/// A case to execute.
#[derive(Debug)]
pub struct Job<'a> {
    /// What to execute.
    pub plan: &'a Plan,
    /// Where its bytes lie.
    pub layout: &'a Layout,
    /// One word per run, as in [`Run::poisons`].
    pub poisons: &'a [u32],
    /// Its inputs, filled.
    pub inputs: &'a Shared,
    /// Room for its results. Poisoned before each attempt; to be read when the attempt has returned.
    pub results: &'a mut Shared,
    /// How long an answer may take.
    pub deadline: Duration,
    /// What the log of a known death of this case has, one of them: it is believed the first time.
    pub known_logs: &'a [String],
}

/// What came of executing a case.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub enum Attempt {
    /// The worker answered; with [`Outcome::Done`] there are results to judge.
    Ran {
        /// How it went.
        outcome: Outcome,
        /// How long it took.
        times: Times,
        /// The memory of the device afterwards.
        memory: Option<DeviceMemory>,
        /// What else the device has seen.
        observed: Observed,
        /// A death on the way to this answer that was not repeated: to be counted and printed, not gating.
        incident: Option<Incident>,
    },
    /// The worker died of this case, believed: a time-out where the cause is [`Cause::Silent`], else a crash.
    Died(Death),
    /// There is no such device here: one line says why.
    Unavailable(String),
    /// The device is lost for the rest of the run.
    Wedged(String),
}

/// What a worker answers: how it went, how long it took, what memory the device had afterwards, and what else it saw.
type Answer = (Outcome, Times, Option<DeviceMemory>, Observed);

/// A death that a fresh worker did not repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    /// The kind of the first death, as [`Cause::kind`] names it.
    pub kind: &'static str,
    /// One line.
    pub detail: String,
    /// The last of what that worker printed.
    pub log: String,
}

/// Why a device cannot be used (any more). It stays so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDevice {
    /// It could never be opened.
    #[error("{0}")]
    Unavailable(String),
    /// It was open before.
    #[error("{0}")]
    Wedged(String),
}

impl NoDevice {
    /// As the outcome of an attempt, in which a worker may have died before the device was found lost.
    fn during(self, death: Option<&Death>) -> Attempt {
        match (self, death) {
            (NoDevice::Unavailable(why), _) => Attempt::Unavailable(why),
            (NoDevice::Wedged(why), None) => Attempt::Wedged(why),
            (NoDevice::Wedged(why), Some(death)) => {
                Attempt::Wedged(format!("{why}; before that, on this case, {death}"))
            }
        }
    }
}

/// Keeps one device at work.
pub struct Supervisor {
    launch: Launch,
    device: String,
    /// Whose fault the device has.
    mutant: Option<String>,
    limits: Limits,
    worker: Option<Worker>,
    /// Cases that the present worker has answered.
    answered: u64,
    /// Set by the first opening.
    info: Option<DeviceInfo>,
    lost: Option<NoDevice>,
    /// Openings in a row that led to no answer.
    streak: Streak,
    seq: u64,
    idle_deaths: u64,
}

/// Failures in a row.
#[derive(Clone, Copy, Default)]
struct Streak {
    failures: u32,
    kills: u32,
}

impl Supervisor {
    /// Tells the worker to end, without waiting for it: dropping this waits.
    pub fn dismiss(&mut self) {
        if let Some(worker) = &mut self.worker {
            worker.dismiss();
        }
    }

    /// A supervisor for one device of one backend's worker. Starts nothing yet.
    pub fn new(launch: Launch, device: &str, limits: Limits) -> Self {
        Supervisor {
            launch,
            device: device.to_owned(),
            mutant: None,
            limits,
            worker: None,
            answered: 0,
            info: None,
            lost: None,
            streak: Streak::default(),
            seq: 0,
            idle_deaths: 0,
        }
    }

    /// The same with the fault of a mutant put into the device.
    #[must_use]
    pub fn mutated(mut self, mutant: &str) -> Self {
        self.mutant = Some(mutant.to_owned());
        self
    }

    /// Opens the device unless it is open, and says what it is.
    pub fn open(&mut self) -> Result<&DeviceInfo, NoDevice> {
        self.ready()?;
        // `ready` has set it.
        self.info.as_ref().ok_or_else(|| NoDevice::Unavailable(format!("device '{}' gave no description", self.device)))
    }

    /// The device, once it has been open.
    pub fn info(&self) -> Option<&DeviceInfo> {
        self.info.as_ref()
    }

    /// The present worker's process.
    pub fn pid(&self) -> Option<u32> {
        self.worker.as_ref().map(Worker::pid)
    }

    /// Workers found dead between cases and replaced.
    pub fn idle_deaths(&self) -> u64 {
        self.idle_deaths
    }

    /// Executes a case, again in a fresh worker where the first one dies.
    pub fn attempt(&mut self, job: &mut Job<'_>) -> Attempt {
        let mut first: Option<Death> = None;
        let (mut deaths, mut kills) = (0, 0);
        loop {
            let death = match self.run_once(job) {
                Ok(Ok((outcome, times, memory, observed))) => {
                    return Attempt::Ran { outcome, times, memory, observed, incident: first.map(Incident::from) };
                }
                Ok(Err(death)) => death,
                Err(none) => return none.during(first.as_ref()),
            };
            let is_known = job.known_logs.iter().any(|text| death.log.contains(text));
            if is_known && !death.cause.is_from_outside() {
                return Attempt::Died(death);
            }
            let counter = if death.cause.is_from_outside() { &mut kills } else { &mut deaths };
            *counter += 1;
            if deaths >= BELIEVED_DEATHS || kills >= BELIEVED_KILLS {
                return Attempt::Died(death);
            }
            first.get_or_insert(death);
        }
    }

    /// Executes a case alone in a fresh worker: for a mismatch or a device error, which must be seen twice as well.
    pub fn confirm(&mut self, job: &mut Job<'_>) -> Attempt {
        self.retire();
        self.attempt(job)
    }

    /// Ends the present worker; the next case starts a fresh one.
    pub fn retire(&mut self) {
        self.worker = None;
    }

    /// One execution in one worker. Workers that die before they begin are replaced without a word.
    fn run_once(&mut self, job: &mut Job<'_>) -> Result<Result<Answer, Death>, NoDevice> {
        loop {
            job.results.poison(job.layout, job.poisons);
            self.seq += 1;
            let request = Request::Run(Box::new(Run {
                seq: self.seq,
                plan: job.plan.clone(),
                layout: job.layout.clone(),
                inputs: job.inputs.path().to_owned(),
                results: job.results.path().to_owned(),
                poisons: job.poisons.to_vec(),
                one_by_one: one_by_one(job.plan, job.poisons.len()),
            }));
            match self.ready()?.call(&request, job.deadline) {
                Ok(Reply::Ran { outcome, times, memory, observed, .. }) => {
                    self.streak = Streak::default();
                    self.answered += 1;
                    let is_worn = self.limits.cases.is_some_and(|most| self.answered >= most);
                    if is_worn || matches!(outcome, Outcome::Failed { .. }) {
                        // After an error a context may be good for nothing; the next case must not pay for it.
                        self.retire();
                    }
                    return Ok(Ok((outcome, times, memory, observed)));
                }
                // `call` lets nothing else through; were it otherwise, the worker would be at fault.
                Ok(other) => {
                    self.retire();
                    let cause = Cause::Garbage(format!("unexpected reply {other:?}"));
                    return Ok(Err(Death { cause, log: String::new() }));
                }
                Err(death) => {
                    self.retire();
                    match death.cause {
                        Cause::Unkillable { .. } => return Err(self.lose(format!("{death}"))),
                        Cause::DiedIdle(_) => {
                            self.idle_deaths += 1;
                            self.failed_opening(&death.to_string(), death.cause.is_from_outside())?;
                        }
                        _ => {
                            self.streak = Streak::default();
                            return Ok(Err(death));
                        }
                    }
                }
            }
        }
    }

    /// The worker, started and opened if there is none.
    fn ready(&mut self) -> Result<&mut Worker, NoDevice> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => self.start()?,
        };
        Ok(self.worker.insert(worker))
    }

    fn start(&mut self) -> Result<Worker, NoDevice> {
        loop {
            match Worker::spawn(&self.launch, &self.device, self.mutant.as_deref(), self.limits.open) {
                Ok(worker) => {
                    self.recognise(&worker)?;
                    self.answered = 0;
                    return Ok(worker);
                }
                Err(OpenError::Died(death @ Death { cause: Cause::Unkillable { .. }, .. })) => {
                    return Err(self.lose(death.to_string()));
                }
                Err(OpenError::Died(death)) => {
                    let outside = death.cause.is_from_outside();
                    self.failed_opening(&format!("{death}{}", death.last_line()), outside)?;
                }
                // A first refusal is an answer, and a program that cannot be started will not be there the next time.
                Err(e) if self.info.is_none() => return Err(self.lose(e.to_string())),
                Err(e) => self.failed_opening(&e.to_string(), false)?,
            }
        }
    }

    /// After a reset another device may answer to the same key; its results would be filed under a wrong name.
    fn recognise(&mut self, worker: &Worker) -> Result<(), NoDevice> {
        let Some(now) = worker.info() else { return Ok(()) };
        let same = |was: &DeviceInfo| {
            let (one, other) = (&was.identity, &now.identity);
            (&was.name, &was.driver, was.capabilities) == (&now.name, &now.driver, now.capabilities)
                && (one.pci_id(), one.uuid()) == (other.pci_id(), other.uuid())
        };
        match &self.info {
            None => self.info = Some(now.clone()),
            Some(was) if same(was) => {}
            Some(was) => {
                let place = |info: &DeviceInfo| info.identity.pci_id().map(|id| format!(", {id}")).unwrap_or_default();
                let what = |info: &DeviceInfo| format!("'{}' ({}{})", info.name, info.driver, place(info));
                let why = format!("it was {} and is now {}", what(was), what(now));
                return Err(self.lose(why));
            }
        }
        Ok(())
    }

    /// Counts a worker that never came to answer a case, and gives the device up after too many in a row.
    fn failed_opening(&mut self, why: &str, from_outside: bool) -> Result<(), NoDevice> {
        let limit = if self.info.is_some() { REOPENINGS } else { FIRST_OPENINGS };
        if from_outside {
            self.streak.kills += 1;
        } else {
            self.streak.failures += 1;
        }
        if self.streak.failures >= limit || self.streak.kills > OPENING_KILLS {
            let times = self.streak.failures + self.streak.kills;
            return Err(self.lose(format!("{why} ({times} times in a row)")));
        }
        let again = (self.streak.failures + self.streak.kills - 1).min(5);
        thread::sleep(self.limits.pause * (2u32.pow(again) - 1));
        Ok(())
    }

    fn lose(&mut self, why: String) -> NoDevice {
        self.retire();
        let none = match self.info {
            None => NoDevice::Unavailable(format!("device '{}': {why}", self.device)),
            Some(_) => NoDevice::Wedged(format!("device '{}' was open before and is lost: {why}", self.device)),
        };
        self.lost.insert(none).clone()
    }
}

impl From<Death> for Incident {
    fn from(death: Death) -> Self {
        Incident { kind: death.cause.kind(), detail: death.to_string(), log: death.log }
    }
}
