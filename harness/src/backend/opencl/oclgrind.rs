//! Oclgrind, an interpreter of kernels that sees what they do to memory: accesses out of bounds, values that nobody
//! wrote, data races, barriers that part of a work-group does not reach.
//!
//! What it sees it writes to a file, once for each mistake. That file is anonymous and this process's own, so workers
//! that run at once don't write over each other's. Oclgrind is told of it, and of what to look for, by environment
//! variables that it reads when a context is created; one that is set already (`OCLGRIND_DATA_RACES=0`) stays.
//!
//! Memory has no guards here: the interpreter knows where an allocation ends, to the byte, for reads as well. And its
//! record of which bytes are written is right only where the host writes an allocation as a whole: kernels that move
//! pieces of memory are run here only where it is not asked for (`OCLGRIND_UNINITIALIZED=0`).

// The environment is changed, before there is a second thread.
#![allow(unsafe_code)]

use std::env;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use conform_cases::judge::Complaints;

/// What its platform is called.
pub(super) const PLATFORM: &str = "Oclgrind";

/// How kernels are compiled for it: it does not know every instruction that an optimiser makes.
pub(super) const OPTIONS: &str = "-cl-opt-disable";

/// What it is told to look for. Accesses out of bounds and barriers are always looked at.
const ASKED: [&str; 3] = ["OCLGRIND_DATA_RACES", UNWRITTEN, "OCLGRIND_CHECK_API"];

/// One of these: values that nobody wrote.
const UNWRITTEN: &str = "OCLGRIND_UNINITIALIZED";

/// Where it is told to write.
const LOG: &str = "OCLGRIND_LOG";

/// Stands in the last complaint of a context that has too many.
const SUPPRESSED: &str = "suppressing further errors";

/// What it writes to, where this process has told it so.
static WRITTEN: OnceLock<File> = OnceLock::new();

/// Tells an Oclgrind that this process may load later what to look for, and where to write.
pub(super) fn prepare_process() {
    // Elsewhere an open file has no name to be opened by: complaints are missing then, which fails every case.
    if !cfg!(target_os = "linux") {
        return;
    }
    let Ok(file) = tempfile::tempfile() else { return };
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    if WRITTEN.set(file).is_err() {
        return;
    }
    let unset = ASKED.into_iter().filter(|name| env::var_os(name).is_none());
    for (name, value) in unset.map(|name| (name, "1")).chain([(LOG, name.as_str())]) {
        // SAFETY: a worker calls this once, at its start, before it has a second thread that could read the environment.
        unsafe { env::set_var(name, value) };
    }
}

/// Whether it keeps a record of which bytes were written. It takes exactly this for a yes.
pub(super) fn looks_for_unwritten() -> bool {
    env::var_os(UNWRITTEN).is_some_and(|value| value == "1")
}

/// What of the complaints of one context was read.
#[derive(Default)]
pub(super) struct Watch {
    read: u64,
    /// It has said that it says no more.
    is_silent: bool,
}

impl Watch {
    /// What was written since the last call; `None` where it can't be read.
    pub(super) fn complaints(&mut self) -> Option<Complaints> {
        let file = WRITTEN.get()?;
        let end = file.metadata().ok()?.len();
        // A new context begins the file anew.
        let start = if end < self.read { 0 } else { self.read };
        let mut bytes = vec![0; usize::try_from(end - start).ok()?];
        file.read_exact_at(&mut bytes, start).ok()?;
        self.read = end;
        Some(self.told(&String::from_utf8_lossy(&bytes)))
    }

    fn told(&mut self, text: &str) -> Complaints {
        let mut complaints = Complaints::read(text);
        if self.is_silent && complaints.count == 0 {
            let line = "Oclgrind has complained too often, and tells nothing more in this process".to_owned();
            complaints = Complaints { count: 1, first: vec![line] };
        }
        self.is_silent |= text.contains(SUPPRESSED);
        complaints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_too_many_complaints_silence_is_none() {
        let mut watch = Watch::default();
        assert_eq!(watch.told("").count, 0);
        assert_eq!(watch.told("\nInvalid read\n\tKernel: x\n").count, 1);
        assert_eq!(watch.told("").count, 0);
        watch.told("\nInvalid read\n\tKernel: x\n\nOclgrind: 1000 errors generated - suppressing further errors\n\n");
        assert_eq!(watch.told("").count, 1);
    }

    #[test]
    fn a_process_that_was_not_prepared_has_nothing_to_read() {
        assert_eq!(Watch::default().complaints(), None);
    }
}
