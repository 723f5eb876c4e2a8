//! The files of a run: `run.json`, and `results.jsonl` with a line per case and device, on disk as soon as it is known.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::backend::DeviceInfo;
use crate::discover::{Discovery, Missing};
use crate::expect::Recorded;
use crate::identity::Repeated;
use crate::result::CaseResult;

/// Number of the layout of the files; a reader refuses others.
pub const SCHEMA: u32 = 1;

/// Environment variables whose names start like this change what devices do, and are recorded.
const ENVIRONMENT: [&str; 14] = [
    "CONFORM_",
    "CUDA_",
    "GGML_",
    "GPU_",
    "HIP_",
    "MESA_",
    "NVIDIA_VISIBLE_",
    "OCL_",
    "ONEAPI_",
    "POCL_",
    "ROCR_",
    "RUSTICL_",
    "VK_",
    "ZE_",
];

/// Variables of this process that change what devices do, and which there are.
pub fn environment() -> BTreeMap<String, String> {
    let relevant = |(name, _): &(String, String)| ENVIRONMENT.iter().any(|prefix| name.starts_with(prefix));
    let lossy = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
    };
    std::env::vars_os().map(lossy).filter(relevant).collect()
}

/// What is known before the first case.
#[derive(Debug, Serialize)]
pub struct RunHead<'a> {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of conform.
    pub conform: &'static str,
    /// Name of the profile.
    pub profile: &'a str,
    /// Seed of drawn cases.
    pub seed: u64,
    /// Filters.
    pub filters: Vec<&'a str>,
    /// Devices that are judged.
    pub devices: Vec<&'a DeviceInfo>,
    /// Backends without devices.
    pub missing: &'a [Missing],
    /// Operating system and architecture.
    pub host: String,
    /// Variables that change what devices do.
    pub environment: BTreeMap<String, String>,
    /// What each device had to be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required: Vec<String>,
    /// Devices that reach a GPU which is judged through another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<Repeated>,
    /// Known results.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expectations: Vec<Recorded>,
}

impl<'a> RunHead<'a> {
    /// The head of a run on `devices`.
    pub fn new(
        profile: &'a str,
        seed: u64,
        filters: Vec<&'a str>,
        devices: Vec<&'a DeviceInfo>,
        all: &'a Discovery,
    ) -> Self {
        RunHead {
            schema: SCHEMA,
            conform: env!("CARGO_PKG_VERSION"),
            profile,
            seed,
            filters,
            devices,
            missing: &all.missing,
            host: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            environment: environment(),
            required: Vec::new(),
            left_out: Vec::new(),
            expectations: Vec::new(),
        }
    }
}

/// Writes the files of a run.
pub struct Recorder {
    path: PathBuf,
    results: File,
    /// Bytes of whole lines.
    whole: u64,
}

impl Recorder {
    /// Starts a run's folder. A folder that holds results already is refused, so that nothing is lost.
    pub fn create(dir: &Path, head: &RunHead<'_>) -> Result<Self, String> {
        let path = dir.join("results.jsonl");
        let say = |what: &str, path: &Path, e: io::Error| format!("--out: cannot {what} {}: {e}", path.display());
        fs::create_dir_all(dir).map_err(|e| say("create", dir, e))?;
        if path.exists() {
            return Err(format!("--out: {} exists already; choose an empty folder", path.display()));
        }
        // The head first: a folder without results can be tried again.
        let head_path = dir.join("run.json");
        let text = serde_json::to_string_pretty(head).map_err(|e| format!("--out: run.json: {e}"))?;
        fs::write(&head_path, text + "\n").map_err(|e| say("write", &head_path, e))?;
        let results =
            OpenOptions::new().append(true).create_new(true).open(&path).map_err(|e| say("create", &path, e))?;
        Ok(Recorder { path, results, whole: 0 })
    }

    /// Appends a result in one write.
    pub fn record(&mut self, result: &CaseResult) -> Result<(), String> {
        let mut line = serde_json::to_vec(result).map_err(|e| format!("{}: {e}", self.path.display()))?;
        line.push(b'\n');
        if let Err(e) = self.results.write_all(&line) {
            // A torn line is dropped, so that what was kept can be read.
            let cut = self
                .results
                .set_len(self.whole)
                .map_or_else(|e| format!(", and its last line is torn: {e}"), |()| String::new());
            return Err(format!("cannot write {}: {e}{cut}", self.path.display()));
        }
        self.whole += line.len() as u64;
        Ok(())
    }
}
