//! The workers of one device, shared by all lanes.
//!
//! A lane takes a worker for one case and gives it back. A device may refuse a second context (exclusive mode, little
//! memory): then the lanes take turns with those that are open, and no case is lost.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::backend::DeviceMemory;
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
    /// Bytes of the device's memory that cases may take together, once its driver has told.
    room: Option<u64>,
    /// Bytes that cases have taken.
    reserved: u64,
}

/// Memory of the device that a case has taken until this is dropped.
pub(super) struct Reserved<'a> {
    pool: &'a Pool,
    bytes: u64,
}

impl State {
    /// Whether the cases that hold memory leave enough. One that finds nobody else there is let through whatever it
    /// needs, and the device answers for itself.
    fn has_room(&self, bytes: u64) -> bool {
        self.reserved == 0 || self.room.is_none_or(|room| self.reserved.saturating_add(bytes) <= room)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.pool.lock().reserved -= self.bytes;
        self.pool.changed.notify_all();
    }
}

impl Pool {
    pub(super) fn new(found: Found, limits: Limits) -> Self {
        Pool { found, limits, state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of what a driver says is free after a case of so many bytes was freed, while others may hold theirs.
    pub(super) fn told(&self, memory: DeviceMemory, bytes: u64) {
        let mut state = self.lock();
        let others = state.reserved.saturating_sub(bytes);
        state.room = Some(memory.free.saturating_add(others).min(memory.total));
    }

    /// Memory of the device for one case: waits until those that hold some leave enough.
    pub(super) fn reserve(&self, bytes: u64) -> Reserved<'_> {
        let mut state = self.lock();
        while !state.has_room(bytes) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.reserved += bytes;
        Reserved { pool: self, bytes }
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
        // Others may be waiting for memory, not for a worker.
        self.changed.notify_all();
    }

    /// Tells idle workers to end, without waiting for it.
    pub(super) fn dismiss(&self) {
        self.lock().idle.iter_mut().for_each(Supervisor::dismiss);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Device as _;
    use crate::backend::cpu::{CpuDevice, Stages};
    use crate::worker::Launch;

    #[test]
    fn cases_share_what_memory_the_device_has_left() {
        let info = CpuDevice::new(Stages::default()).info().clone();
        let found = Found { info, launch: Launch::conform("nobody", "cpu"), told: None };
        let pool = Pool::new(found, Limits::default());
        let first = pool.reserve(600);
        // Nothing is known of the memory yet.
        drop(pool.reserve(600));
        pool.told(DeviceMemory { free: 1000, total: 2000 }, 600);
        assert!(pool.lock().has_room(400) && !pool.lock().has_room(401));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| drop(pool.reserve(600)));
            drop(first);
            second.join().unwrap();
        });
        // More than there is: the device answers for itself.
        drop(pool.reserve(1 << 40));
        // A driver that tells nonsense is not believed beyond what it says there is.
        let some = pool.reserve(600);
        pool.told(DeviceMemory { free: u64::MAX, total: 1000 }, 0);
        assert!(!pool.lock().has_room(401));
        drop(some);
        assert_eq!(pool.lock().reserved, 0);
    }
}
