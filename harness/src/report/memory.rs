//! Memory of devices over a run: what is not given back adds up.

use std::collections::VecDeque;
use std::fmt;

use serde::Serialize;

use crate::backend::DeviceMemory;

/// Memory of a device that was in use between cases: the least of some results, since other workers hold theirs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MemoryInUse {
    /// Bytes, after a fifth of the run: by then all workers have opened the device.
    pub early: u64,
    /// Bytes, in the last results.
    pub late: u64,
    /// All that the device has.
    pub total: u64,
    /// The least of each [`WINDOW`] results.
    #[serde(skip)]
    least: Vec<u64>,
    #[serde(skip)]
    latest: VecDeque<u64>,
    #[serde(skip)]
    results: usize,
}

/// Results among which the least memory in use is looked for.
const WINDOW: usize = 50;

impl MemoryInUse {
    /// Whether there are results enough to compare.
    pub fn is_telling(&self) -> bool {
        self.results >= 2 * WINDOW
    }

    /// Counts what was in use after a case.
    pub fn add(&mut self, memory: DeviceMemory) {
        self.total = memory.total;
        self.latest.push_back(memory.used());
        if self.latest.len() > WINDOW {
            self.latest.pop_front();
        }
        self.late = self.latest.iter().copied().min().unwrap_or_default();
        self.results += 1;
        if self.results.is_multiple_of(WINDOW) {
            self.least.push(self.late);
        }
        self.early = self.least.get(self.least.len() / 5).copied().unwrap_or(self.late);
    }
}

impl fmt::Display for MemoryInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        let (early, late, total) = (mib(self.early), mib(self.late), mib(self.total));
        write!(f, "{early} MiB after a fifth of the run, {late} MiB at its end, of {total} MiB")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_over_a_run_shows() {
        let mut in_use = MemoryInUse::default();
        let mut add = |used: u64| in_use.add(DeviceMemory { free: 10_000 - used, total: 10_000 });
        // Workers that are still opening the device, then others that hold some in between, and 8 bytes lost in each case.
        (0..WINDOW as u64).for_each(&mut add);
        (0..9 * WINDOW as u64).for_each(|i| add(1000 + 8 * i + i % 7));
        assert!(in_use.is_telling() && !MemoryInUse::default().is_telling());
        assert_eq!((in_use.early, in_use.late, in_use.total), (1401, 4201, 10_000));
    }
}
