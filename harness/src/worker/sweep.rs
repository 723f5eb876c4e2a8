//! Removing shared memory that a killed conform left behind: files in `/dev/shm` are memory until the next boot.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::sys;

/// How the names of our files start.
pub(super) const PREFIX: &str = "conform-shared-";

/// A file is locked right after it is created; one younger than this may be in between.
const SETTLED: Duration = Duration::from_secs(60);

/// Sweeps a directory, the first time that this process uses it.
pub(super) fn once(dir: &Path) {
    static SWEPT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    if SWEPT.lock().unwrap_or_else(PoisonError::into_inner).insert(dir.to_owned()) {
        sweep(dir, SETTLED);
    }
}

/// Removes what carries our name, can be opened by us and is locked by nobody: its owner is dead, wherever it ran.
fn sweep(dir: &Path, settled: Duration) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let age =
            entry.metadata().and_then(|m| m.created().or_else(|_| m.modified())).ok().and_then(|t| t.elapsed().ok());
        if age.is_some_and(|age| age >= settled) && File::open(entry.path()).is_ok_and(|file| sys::try_lock(&file)) {
            // Two sweepers may meet here; the second finds nothing to remove.
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_dead_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let create = |name: &str| File::create(dir.path().join(name)).unwrap();
        let living = create("conform-shared-living");
        assert!(sys::try_lock(&living));
        create("conform-shared-dead");
        create("other");
        sweep(dir.path(), SETTLED);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "all are too young");
        sweep(dir.path(), Duration::ZERO);
        let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["conform-shared-living", "other"]);
    }
}
