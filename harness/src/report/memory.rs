//! Memory of devices over a run: what is not given back adds up.

use std::collections::VecDeque;
use std::fmt;

use serde::Serialize;

use crate::backend::DeviceMemory;

/// Memory of a device that was in use between cases: the least of some results, since other workers hold theirs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MemoryInUse {
    /// Bytes, in the first results.
    pub at_first: u64,
    /// Bytes, in the last ones.
    pub at_last: u64,
    /// All that the device has.
    pub total: u64,
    #[serde(skip)]
    results: usize,
    #[serde(skip)]
    latest: VecDeque<u64>,
}

/// Results among which the least memory in use is looked for.
const WINDOW: usize = 50;

impl MemoryInUse {
    /// Counts what was in use after a case.
    pub fn add(&mut self, memory: DeviceMemory) {
        self.total = memory.total;
        self.results += 1;
        self.latest.push_back(memory.used());
        if self.latest.len() > WINDOW {
            self.latest.pop_front();
        }
        self.at_last = self.latest.iter().copied().min().unwrap_or_default();
        if self.results <= WINDOW {
            self.at_first = self.at_last;
        }
    }
}

impl fmt::Display for MemoryInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        let (first, last, total) = (mib(self.at_first), mib(self.at_last), mib(self.total));
        write!(f, "{first} MiB at first, {last} MiB at last, of {total} MiB")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_the_first_and_of_the_last_results() {
        let mut in_use = MemoryInUse::default();
        let mut add = |used: u64| in_use.add(DeviceMemory { free: 1000 - used, total: 1000 });
        // Other workers hold some in between; 100 bytes are lost on the way.
        (0..WINDOW as u64).for_each(|i| add(10 + i % 7));
        (0..WINDOW as u64).for_each(|i| add(110 + i % 5));
        assert_eq!((in_use.at_first, in_use.at_last, in_use.total), (10, 110, 1000));
    }
}
