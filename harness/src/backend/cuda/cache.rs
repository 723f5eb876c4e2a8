//! Compiled kernels on disk, so that a worker starts without compiling.
//!
//! A file holds the whole of what it was made from (sources, options, target,
//! the compiler's version) before what was made, and a checksum behind it. A
//! file that is absent, broken or of something else is a miss and no more, and
//! so is a folder that can't be written. `CONFORM_CUDA_CACHE` names another
//! folder than the user's cache, or is `off`.

use std::env;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

use crate::select::fnv1a;

/// Environment variable with the folder, or `off`.
const FOLDER: &str = "CONFORM_CUDA_CACHE";
/// What a file begins with; the number changes with the layout.
const MAGIC: &[u8; 8] = b"conform1";

/// A folder of compiled kernels.
pub(super) struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The folder that the environment names.
    pub(super) fn from_environment() -> Self {
        let set = |name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let user = || {
            let caches = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
            caches.map(|caches| caches.join("conform").join("cuda"))
        };
        let folder = set(FOLDER).map_or_else(user, |named| Some(named).filter(|n| n.as_os_str() != "off"));
        Cache { folder }
    }

    /// No cache at all.
    pub(super) fn none() -> Self {
        Cache { folder: None }
    }

    /// What was stored for this key.
    pub(super) fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let file = fs::read(self.file(key)?).ok()?;
        let rest = file.strip_prefix(MAGIC)?.strip_prefix(&(key.len() as u64).to_le_bytes())?.strip_prefix(key)?;
        let (image, sum) = rest.split_at_checked(rest.len().checked_sub(8)?)?;
        (sum == fnv1a(image).to_le_bytes()).then(|| image.to_vec())
    }

    /// Stores something, or does not: a cache may fail.
    pub(super) fn put(&self, key: &[u8], image: &[u8]) {
        let _ = self.try_put(key, image);
    }

    fn try_put(&self, key: &[u8], image: &[u8]) -> Option<()> {
        let path = self.file(key)?;
        let folder = path.parent()?;
        fs::create_dir_all(folder).ok()?;
        // Other workers see the whole file or none.
        let mut file = tempfile::NamedTempFile::new_in(folder).ok()?;
        for part in [MAGIC, &(key.len() as u64).to_le_bytes()[..], key, image, &fnv1a(image).to_le_bytes()] {
            file.write_all(part).ok()?;
        }
        file.persist(path).ok().map(drop)
    }

    /// The hash finds the file; one of another key is told by the key in it.
    fn file(&self, key: &[u8]) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("{:016x}", fnv1a(key))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stored_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache { folder: Some(folder.path().join("deep/er")) };
        assert_eq!(cache.get(b"key"), None);
        cache.put(b"key", b"image");
        assert_eq!(cache.get(b"key").as_deref(), Some(&b"image"[..]));
        assert_eq!(cache.get(b"other"), None);
    }

    #[test]
    fn any_damage_is_a_miss() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache { folder: Some(folder.path().to_owned()) };
        cache.put(b"key", b"image");
        let path = cache.file(b"key").unwrap();
        let whole = fs::read(&path).unwrap();
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            assert_eq!(cache.get(b"key"), None, "{len} bytes");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert_eq!(cache.get(b"key"), None, "byte {at}");
        }
    }

    #[test]
    fn nowhere_to_write_is_no_error() {
        Cache::none().put(b"key", b"image");
        Cache { folder: Some("/proc/none".into()) }.put(b"key", b"image");
    }
}
