//! Devices: everything that executes steps. Drivers and devices exist only in worker processes.
//!
//! A new backend is one folder beside this file and one line in [`drivers`].

pub mod cpu;
pub mod cuda;
pub mod fake;
mod gather;
pub mod ggml;
mod gpu;
mod moves;
pub mod opencl;
pub mod routing;
mod spans;

use std::collections::BTreeMap;
use std::ops::Range;

use conform_cases::formats::ElemType;
pub use conform_cases::judge::{Capabilities, Complaints, Guards};
use conform_cases::llama::calls::Call;
use conform_cases::plan::{Part, Plan};
use serde::{Deserialize, Serialize};

use crate::identity::Claims;
use crate::mutants::Edits;
use routing::Reuse;

/// A family of devices reached through one API.
pub trait Driver: Sync {
    /// The backend's name: the first word of its devices' keys.
    fn name(&self) -> &'static str;

    /// Called once in a worker process, before it has a second thread and before anything else: the environment may be
    /// changed here.
    fn prepare_process(&self) {}

    /// Looks for devices without creating anything that lasts.
    fn probe(&self) -> Probe;

    /// Opens a device that [`probe`](Driver::probe) found.
    fn open(&self, key: &str) -> Result<Box<dyn Device>, DeviceError>;

    /// Opens it with a fault in its kernels. Only kernels of our own have faults that can be put into them.
    fn open_mutant(&self, key: &str, _edits: &Edits) -> Result<Box<dyn Device>, DeviceError> {
        Err(DeviceError(format!("open {key}: its kernels are not ours to edit")))
    }

    /// Opens it with another rule of when sorted slots are used again. Only devices of our own have one.
    fn open_reusing(&self, key: &str, _reuse: Reuse) -> Result<Box<dyn Device>, DeviceError> {
        Err(DeviceError(format!("open {key}: what it keeps between steps is not ours to choose")))
    }
}

/// Every driver of this build. Naming them loads none; `ggml` and `fake` are there only for a process that was asked to
/// have them.
pub fn drivers() -> Vec<&'static dyn Driver> {
    let mut drivers: Vec<&'static dyn Driver> = vec![&cpu::CpuDriver, &opencl::OpenCl, &cuda::Cuda];
    if ggml::GgmlDriver::is_wanted() {
        drivers.push(&ggml::GgmlDriver);
    }
    if fake::Fake::is_wanted() {
        drivers.push(&fake::DRIVER);
    }
    drivers
}

/// The names of all drivers.
pub fn names() -> Vec<&'static str> {
    drivers().into_iter().map(Driver::name).collect()
}

/// What a driver found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// At least one device.
    Found(Vec<DeviceInfo>),
    /// At least one device, and parts of the backend that could have had some.
    FoundPart {
        /// The devices.
        devices: Vec<DeviceInfo>,
        /// Why there are not more: one line for each part.
        absent: Vec<String>,
    },
    /// Nothing, and why: one line.
    Missing(String),
}

/// What is known of a device without opening it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceInfo {
    /// Stable and path-safe: `cpu`, `opencl-pocl-0`.
    pub key: String,
    /// The backend's name.
    pub backend: String,
    /// The device's own name for itself.
    pub name: String,
    /// Name and version of the driver.
    pub driver: String,
    /// What the driver says it is: by this one GPU is known through several backends.
    pub identity: Claims,
    /// Anything else worth recording, in the driver's words.
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
    /// What it can be asked, and so which checks are possible.
    pub capabilities: Capabilities,
}

/// Memory of a device in bytes, in the words of its driver and for all processes that use it together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceMemory {
    /// Free at the moment.
    pub free: u64,
    /// All there is.
    pub total: u64,
}

impl DeviceMemory {
    /// What a driver says, unless that can't be: without a total, or with more free than there is, it tells nothing.
    pub fn told(free: u64, total: u64) -> Option<Self> {
        (total > 0 && free <= total).then_some(DeviceMemory { free, total })
    }

    /// What is in use.
    pub fn used(self) -> u64 {
        self.total.saturating_sub(self.free)
    }
}

/// Why a device has no libllama.
const NO_LLAMA: &str = "this device has no libllama, which only ggml builds have";

/// An open device: it holds one plan at a time.
pub trait Device {
    /// What this device is.
    fn info(&self) -> &DeviceInfo;

    /// Decodes whole blocks of a type that only the backend itself can decode: as many numbers as there are places.
    fn decode(&self, _ty: ElemType, _blocks: &[u8], _out: &mut [f32]) -> Result<(), LoadError> {
        // One reason for all types, so that a summary has one line of it.
        Err(LoadError::Unsupported(
            "this device has no decoder of the weights' type, which only ggml builds have".into(),
        ))
    }

    /// Allocates the plan's tensors and scratch, and answers whether every step is supported.
    /// A device that accepts a plan must be able to run it.
    fn load(&mut self, plan: &Plan) -> Result<(), LoadError>;

    /// Writes `bytes` at a byte offset of a tensor's allocation (its parent, not the view).
    fn write(&mut self, tensor: usize, offset: usize, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Reads from a byte offset of a tensor's allocation, after all queued work.
    fn read(&mut self, tensor: usize, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies pieces from one tensor's allocation to others': `there` is in `from`. It need not wait for the copies, but
    /// whatever is called after it sees them done. A device without copies of its own moves them through the host.
    fn copy(&mut self, from: usize, parts: &[Part]) -> Result<(), DeviceError> {
        for part in parts {
            let mut piece = vec![0; part.size];
            for (here, there) in part.pieces() {
                self.read(from, there, &mut piece)?;
                self.write(part.tensor, here, &piece)?;
            }
        }
        Ok(())
    }

    /// Writes pieces of host memory to tensors, queued together where the device can, and waits for all of them: after
    /// the call the memory may be freed. An error of one is an error of the call.
    fn upload(&mut self, from: &[u8], parts: &[Part]) -> Result<(), DeviceError> {
        for part in parts {
            for (here, there) in part.pieces() {
                self.write(part.tensor, here, &from[there..there + part.size])?;
            }
        }
        Ok(())
    }

    /// Reads pieces of tensors into host memory, in the same way, after all queued work.
    fn fetch(&mut self, to: &mut [u8], parts: &[Part]) -> Result<(), DeviceError> {
        for part in parts {
            for (here, there) in part.pieces() {
                self.read(part.tensor, here, &mut to[there..there + part.size])?;
            }
        }
        Ok(())
    }

    /// Loads a model, a GGUF file, into the backend's own libllama and leaves a record of each call in the log: see
    /// [`calls`](conform_cases::llama::calls). No plan is loaded then.
    fn llama(&mut self, _model: &[u8], _calls: &[Call], _log: &mut [u8]) -> Result<(), LoadError> {
        Err(LoadError::Unsupported(NO_LLAMA.to_owned()))
    }

    /// Fills all scratch memory of the loaded plan with a 32-bit pattern. Without the capability this does nothing.
    fn poison_scratch(&mut self, pattern: u32) -> Result<(), DeviceError>;

    /// Runs a range of the plan's steps, none of which only moves bytes, and waits for them.
    fn run(&mut self, steps: Range<usize>) -> Result<(), DeviceError>;

    /// Frees what [`load`](Device::load) allocated. Without a plan this does nothing.
    fn free(&mut self);

    /// Looks at the guard bytes around all memory of the loaded plan, after all queued work; `None` where there are none.
    fn guards(&mut self) -> Result<Option<Guards>, DeviceError> {
        Ok(None)
    }

    /// What a device that [watches](Capabilities::watched) its kernels has complained of since it was asked last; `None`
    /// where nobody watches, or what was seen can't be read.
    fn complaints(&mut self) -> Option<Complaints> {
        None
    }

    /// How often slots were sorted by expert since the plan was loaded; `None` where the device does not count.
    fn sorts(&self) -> Option<u64> {
        None
    }

    /// The memory of the device; `None` where its driver does not tell, or the device has none of its own.
    fn memory(&self) -> Option<DeviceMemory> {
        None
    }
}

/// Why a plan was not loaded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// The device does not do this, and says so: an honest answer, with the limit and the number that exceeds it.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A call to a driver failed: one line that names the call, the object and the driver's answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(pub String);
