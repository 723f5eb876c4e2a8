//! The CUDA driver that was compiled for tests (`driver.c`).

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A folder with the fake driver as the dynamic loader looks for it.
pub(crate) struct FakeDriver {
    /// Where the library is.
    pub(crate) folder: TempDir,
}

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuda/driver.c");

impl FakeDriver {
    /// Compiles it with the linker's own compiler, which every machine that builds this has.
    pub(crate) fn new(options: &[&str]) -> Self {
        let fake = FakeDriver { folder: tempfile::tempdir().unwrap() };
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-w", "-o"]).arg(fake.library()).args(options).arg(SOURCE);
        assert!(cc.status().unwrap().success());
        fake
    }

    /// One library is driver and compiler. The first name that the driver is looked for by.
    pub(crate) fn library(&self) -> PathBuf {
        self.folder.path().join("libcuda.so")
    }

    pub(crate) fn conform(&self, args: &[&str], environment: &[(&str, &str)]) -> Output {
        conform(self.folder.path(), args, |command| {
            command.env("CONFORM_NVRTC", self.library()).envs(environment.iter().copied())
        })
    }
}

pub(crate) fn conform(libraries: &Path, args: &[&str], with: impl Fn(&mut Command) -> &mut Command) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conform"));
    command.args(args).env("LD_LIBRARY_PATH", libraries).env("CONFORM_CUDA_CACHE", "off");
    with(&mut command).output().unwrap()
}
