//! State written to a file and read from one, through the interfaces of [`conform_cases::state::io`].
//!
//! Rows of tensors are recorded and moved together when the file is finished,
//! as in memory. A file appears under its name when it is whole, or not at all.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use conform_cases::plan::Part;
use conform_cases::state::io::{MemoryWriter, StateError, StateWrite, Transfers};

/// Writes state into a file.
#[derive(Debug)]
#[must_use = "nothing is written before it is finished"]
pub struct FileWriter {
    path: PathBuf,
    memory: MemoryWriter,
}

impl FileWriter {
    /// A file that will be created, or replaced.
    pub fn new(path: &Path) -> Self {
        FileWriter { path: path.to_owned(), memory: MemoryWriter::default() }
    }

    /// Moves the bytes of tensors and writes the file. On an error there is no file, or the one that was there before.
    pub fn finish(self, device: &mut dyn Transfers) -> Result<(), StateError> {
        let FileWriter { path, memory } = self;
        let blob = memory.finish(device)?;
        let cannot = |e: std::io::Error| StateError::NotPossible(format!("cannot write {}: {e}", path.display()));
        let part = path.with_extension("part");
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&part)?;
            file.write_all(&blob)?;
            file.sync_all()?;
            fs::rename(&part, &path)
        };
        write().inspect_err(|_| _ = fs::remove_file(&part)).map_err(cannot)
    }
}

impl StateWrite for FileWriter {
    fn write(&mut self, bytes: &[u8]) {
        self.memory.write(bytes);
    }

    fn write_tensor(&mut self, part: Part) {
        self.memory.write_tensor(part);
    }

    fn advance(&mut self, bytes: usize) {
        self.memory.advance(bytes);
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

/// Reads a whole file of state, of at most so many bytes; it is then read as memory.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, StateError> {
    let cannot = |e: &dyn std::fmt::Display| StateError::NotPossible(format!("cannot read {}: {e}", path.display()));
    let len = fs::metadata(path).map_err(|e| cannot(&e))?.len();
    if len > most {
        return Err(cannot(&format!("it has {len} bytes, a state has {most} at most")));
    }
    fs::read(path).map_err(|e| cannot(&e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::case::Case;
    use conform_cases::state::container::{Container, Kind};
    use conform_cases::state::memory::What;
    use conform_cases::state::plain::PlainMemory;

    /// A device that fails.
    struct Broken;

    impl Transfers for Broken {
        fn fetch(&mut self, _: &mut [u8], _: &[Part]) -> Result<(), String> {
            Err("deviceRead: out of luck (-5)".to_owned())
        }

        fn upload(&mut self, _: &[u8], _: &[Part]) -> Result<(), String> {
            Err("deviceWrite: out of luck (-5)".to_owned())
        }
    }

    #[test]
    fn a_session_file_round_trips_and_a_failed_one_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("session.bin");
        let case: Case = "kv_state/c=16,l=1,k=32,v=32/n=6/v1-1".parse().unwrap();
        let mut memory = case.engine().unwrap();
        let mut device = PlainMemory::new(&memory.attention.as_ref().unwrap().tensors);
        let container = Container::SessionFile { tokens: vec![1, 2], architecture: "llama".to_owned() };
        let begin = || {
            let mut file = FileWriter::new(&path);
            file.write(&container.head());
            file
        };
        let mut file = begin();
        memory.write(What::All, false, &mut file);
        let why = file.finish(&mut Broken).unwrap_err().to_string();
        assert!(why.contains("deviceRead") && !path.exists(), "{why}");

        let mut file = begin();
        memory.write(What::All, false, &mut file);
        let len = file.bytes();
        drop(file);
        assert!(!path.exists());
        let mut file = begin();
        memory.write(What::All, false, &mut file);
        file.finish(&mut device).unwrap();
        let blob = read(&path, 1 << 20).unwrap();
        assert_eq!(blob.len(), len);
        let (head, at) = Container::read(Kind::SessionFile, &blob).unwrap();
        assert_eq!(head, container);
        memory.load(What::All, false, &blob[at..], &mut device).unwrap();
        assert!(read(&path, 8).unwrap_err().to_string().contains("a state has 8 at most"));
        let nowhere = FileWriter::new(&dir.path().join("none/x"));
        assert!(nowhere.finish(&mut device).unwrap_err().to_string().contains("cannot write"));
    }
}
