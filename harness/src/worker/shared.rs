//! Shared memory between the parent and a worker, as files that both map.
//!
//! Files and not descriptors, so that a worker in any language opens them by
//! path. They live in `/dev/shm` where there is room, else in the directory for
//! temporary files. On Linux they have no name there: the path leads through
//! `/proc` to the parent's descriptor, and nothing is left behind however the
//! parent ends.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use conform_cases::plan::Layout;
use memmap2::{Mmap, MmapMut, MmapOptions};

use super::sys;

/// Shared memory could not be had.
#[derive(Debug, thiserror::Error)]
#[error("no shared memory of {len} bytes in {}: {why}; {}", dir.display(), advice(why))]
pub struct SharedError {
    len: usize,
    dir: PathBuf,
    why: io::Error,
}

fn advice(why: &io::Error) -> &'static str {
    match why.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "use fewer --jobs or raise the limit of open files",
        _ => "free some space there or set TMPDIR to a larger place",
    }
}

/// A mapped file that exists as long as this value.
///
/// What a worker maps writable may change at any time while that worker runs a
/// request: read it only after the worker has answered or is dead, which
/// [`Supervisor::attempt`](super::Supervisor::attempt) enforces by borrowing it
/// mutably, and prefer [`copy`](Shared::copy) for anything that is read twice.
#[derive(Debug)]
pub struct Shared {
    map: MmapMut,
    path: PathBuf,
    len: usize,
    /// Keeps the file: without a name it lives as long as this is open.
    _file: Backing,
}

#[cfg(target_os = "linux")]
type Backing = File;
/// Deletes the file when dropped.
#[cfg(not(target_os = "linux"))]
type Backing = tempfile::NamedTempFile;

#[cfg(target_os = "linux")]
fn create_file(dir: &Path) -> io::Result<(Backing, PathBuf)> {
    let file = tempfile::tempfile_in(dir)?;
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
    Ok((file, path))
}

#[cfg(not(target_os = "linux"))]
fn create_file(dir: &Path) -> io::Result<(Backing, PathBuf)> {
    let file = tempfile::Builder::new().prefix("conform-").tempfile_in(dir)?;
    let path = file.path().to_owned();
    Ok((file, path))
}

impl Shared {
    /// Creates zeroed shared memory of at least `len` bytes, all of it reserved.
    pub fn create(len: usize) -> Result<Self, SharedError> {
        let memory = Path::new("/dev/shm");
        let disk = std::env::temp_dir();
        match Self::create_in(memory, len) {
            Ok(shared) => Ok(shared),
            Err(_) => Self::create_in(&disk, len).map_err(|why| SharedError { len, dir: disk, why }),
        }
    }

    fn create_in(dir: &Path, len: usize) -> io::Result<Self> {
        let (backing, path) = create_file(dir)?;
        #[cfg(target_os = "linux")]
        let file = &backing;
        #[cfg(not(target_os = "linux"))]
        let file = backing.as_file();
        // An empty mapping is an error on most systems, and a plan without results is not.
        sys::reserve(file, len.max(1))?;
        // SAFETY: the file was created for this value alone, and conform's workers never truncate it,
        // so every page stays backed. Another process may write to a results file while we hold the mapping. Bytes
        // have no invalid value, and this module's callers read only when the worker has answered or is dead (see the
        // type's documentation); a worker that breaks the protocol and writes later can make us misjudge results,
        // its own or those of a later case in the same memory, which is why what is read repeatedly is copied out first.
        let map = unsafe { MmapOptions::new().populate().map_mut(file)? };
        Ok(Shared { map, path, len, _file: backing })
    }

    /// Where the worker finds it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same memory with another length of what is used of it, up to its capacity.
    #[must_use]
    pub(super) fn with_len(self, len: usize) -> Self {
        Shared { len: len.min(self.map.len()), ..self }
    }

    /// The most that it can hold.
    pub(super) fn capacity(&self) -> usize {
        self.map.len()
    }

    /// Length as asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if nothing was asked for.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map[..self.len]
    }

    /// The bytes, to be filled before a worker is told of them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.len]
    }

    /// A private copy of a range, or `None` if it is not inside.
    pub fn copy(&self, range: Range<usize>) -> Option<Vec<u8>> {
        self.bytes().get(range).map(<[u8]>::to_vec)
    }

    /// Makes a results file look as if nothing had ever been written by a worker: each run's outputs hold that run's
    /// poison and all else the first one, so that nothing left by an earlier case or attempt can pass for an answer.
    pub fn poison(&mut self, layout: &Layout, poisons: &[u32]) {
        let bytes = self.bytes_mut();
        let mut starts: Vec<(usize, u32)> = Vec::new();
        for (run, poison) in layout.results.iter().zip(poisons) {
            starts.extend(run.iter().flatten().map(|at| (*at, *poison)));
        }
        let first = poisons.first().copied().unwrap_or(0);
        starts.extend(layout.readback.iter().chain(&layout.decoded).flatten().map(|at| (*at, first)));
        for (run, poison) in layout.left.iter().zip(poisons) {
            starts.extend(run.iter().flatten().map(|at| (*at, *poison)));
        }
        starts.sort_unstable();
        let ends = starts.iter().skip(1).map(|s| s.0).chain([bytes.len()]);
        for ((start, poison), end) in starts.iter().zip(ends) {
            if let Some(range) = bytes.get_mut(*start..end) {
                fill_words(range, *poison);
            }
        }
    }
}

/// Fills memory with a little-endian 32-bit word; a last part shorter than a word gets its first bytes.
pub fn fill_words(bytes: &mut [u8], word: u32) {
    let word = word.to_le_bytes();
    let (words, rest) = bytes.as_chunks_mut::<4>();
    words.fill(word);
    rest.copy_from_slice(&word[..rest.len()]);
}

/// A worker's view of the inputs: the first `len` bytes, or as many as there are.
pub(crate) fn map_inputs(path: &Path, len: usize) -> Result<Mmap, String> {
    let (file, options) = open(path, OpenOptions::new().read(true), len)?;
    // SAFETY: the parent keeps the file, at its length, and writes nothing to it while a request is in flight. The
    // mapping is read-only: a driver that writes to it crashes, which is what it deserves.
    unsafe { options.map(&file) }.map_err(|e| cannot("map", path, &e))
}

/// A worker's view of the results: the first `len` bytes, or as many as there are.
pub(crate) fn map_results(path: &Path, len: usize) -> Result<MmapMut, String> {
    let (file, options) = open(path, OpenOptions::new().read(true).write(true), len)?;
    // SAFETY: the parent keeps the file, at its length, and reads it only after the answer, when this mapping is gone
    // again; no other worker is told of it meanwhile.
    unsafe { options.map_mut(&file) }.map_err(|e| cannot("map", path, &e))
}

/// Opens a file that may be longer than what a case uses of it, and says how to map no more than that.
fn open(path: &Path, how: &OpenOptions, len: usize) -> Result<(File, MmapOptions), String> {
    let file = how.open(path).map_err(|e| cannot("open", path, &e))?;
    let there = file.metadata().map_err(|e| cannot("measure", path, &e))?.len();
    let len = usize::try_from(there).map_or(len, |there| len.clamp(1, there.max(1)));
    let mut options = MmapOptions::new();
    // All pages at once: one by one, each at its first use, they cost several times as much.
    options.len(len).populate();
    Ok((file, options))
}

fn cannot(what: &str, path: &Path, why: &io::Error) -> String {
    format!("cannot {what} shared memory {}: {why}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::formats::ElemType;
    use conform_cases::plan::{Plan, Role, Tensor};

    #[test]
    fn both_sides_see_the_same_bytes() {
        let mut ours = Shared::create(5).unwrap();
        let path = ours.path().to_owned();
        ours.bytes_mut().copy_from_slice(b"abcde");
        assert_eq!(&map_inputs(&path, 5).unwrap()[..], b"abcde");
        assert_eq!(
            (&map_inputs(&path, 9).unwrap()[..], &map_inputs(&path, 2).unwrap()[..]),
            (&b"abcde"[..], &b"ab"[..])
        );
        map_results(&path, 5).unwrap()[4] = b'x';
        assert_eq!(ours.copy(3..5).unwrap(), b"dx");
        assert_eq!(ours.copy(3..6), None);
        assert!(map_inputs(Path::new("/none"), 1).unwrap_err().contains("cannot open"));
    }

    #[test]
    fn no_bytes_are_fine_and_too_many_are_an_error() {
        assert!(Shared::create(0).unwrap().bytes().is_empty());
        let why = Shared::create(1 << 55).unwrap_err().to_string();
        assert!(why.contains("set TMPDIR"), "{why}");
    }

    #[test]
    fn poison_covers_everything() {
        let out = Tensor::whole("o", ElemType::F32, [3, 1, 1, 1], Role::Output);
        let x = Tensor::whole("x", ElemType::Q2_0, [64, 1, 1, 1], Role::Input);
        let plan = Plan { case: String::new(), tensors: vec![out, x], steps: vec![], ..Plan::default() };
        let layout = Layout::new(&plan, 2);
        let mut results = Shared::create(layout.result_bytes).unwrap();
        results.poison(&layout, &[0x0101_0101, 0x0202_0202]);
        let bytes = results.bytes();
        assert!(bytes[..256].iter().all(|b| *b == 1));
        assert!(bytes[256..512].iter().all(|b| *b == 2));
        assert!(bytes[512..].iter().all(|b| *b == 1));
    }
}
