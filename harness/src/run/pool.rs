//! The workers of one device, shared by all lanes.
//!
//! A lane takes a worker for one case and gives it back. A device may refuse a second context (exclusive mode, little
//! memory): then the lanes take turns with those that are open, and no case is lost.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::discover::Found;
use crate::worker::{Limits, NoDevice, Supervisor};

/// The workers of one device.
pub(super) struct Pool {
    /// What it is, and how to start a worker.
    pub(super) found: Found,
    limits: Limits,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Supervisor>,
    /// Taken by lanes.
    busy: usize,
    /// No more than so many at once, once the device has refused one.
    most: Option<usize>,
    lost: Option<NoDevice>,
    /// Failed cases that a fresh worker has confirmed.
    confirmed: u64,
}

impl Pool {
    pub(super) fn new(found: Found, limits: Limits) -> Self {
        Pool { found, limits, state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker for one case, started or not; waits for one where no more can be had. `None` once the device is lost.
    pub(super) fn take(&self) -> Option<Supervisor> {
        let mut state = self.lock();
        loop {
            if state.lost.is_some() {
                return None;
            }
            let supervisor = match state.idle.pop() {
                Some(supervisor) => Some(supervisor),
                None if state.most.is_none_or(|most| state.busy < most) => {
                    let key = &self.found.info.key;
                    Some(Supervisor::new(self.found.launch.clone(), key, self.limits))
                }
                None => None,
            };
            if let Some(supervisor) = supervisor {
                state.busy += 1;
                return Some(supervisor);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives a worker back.
    pub(super) fn give(&self, supervisor: Supervisor) {
        let mut state = self.lock();
        state.busy -= 1;
        state.idle.push(supervisor);
        self.changed.notify_one();
    }

    /// Gives up a worker that has no device. True if the device is lost with it, and nobody has said so yet; false if
    /// it is lost already, or others still have it: then the case can be tried again.
    pub(super) fn give_up(&self, none: NoDevice) -> bool {
        let mut state = self.lock();
        state.busy -= 1;
        let others = state.busy + state.idle.len();
        let first_to_say = if matches!(none, NoDevice::Unavailable(_)) && others > 0 {
            state.most = Some(others);
            false
        } else {
            state.lost.replace(none).is_none()
        };
        self.changed.notify_all();
        first_to_say
    }

    /// True once the device will not be asked again.
    pub(super) fn is_lost(&self) -> bool {
        self.lock().lost.is_some()
    }

    /// How many failed cases a fresh worker has confirmed.
    pub(super) fn confirmed(&self) -> u64 {
        self.lock().confirmed
    }

    /// Counts a confirmed failure.
    pub(super) fn confirm(&self) {
        self.lock().confirmed += 1;
    }
}
