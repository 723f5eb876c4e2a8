//! ggml: every device of a build of ggml, loaded at run time.
//!
//! A worker drives one build, the one that `CONFORM_GGML_DIR` names
//! ([`Build::tell`]); without it the driver is not there. Nothing is compiled
//! or linked: functions are looked up by name, tensors and graphs are opaque
//! pointers, and what differs between versions is asked for.
//!
//! - `files` finds the libraries, `image` sees that they are whole
//! - `library` loads them into the tables of `api`; `types` finds the numbers of element types
//! - `catalogue` lists devices, `identity` what they are
//! - `llama` drives the libllama of a build that has one
//! - `memory` and `graph` turn a plan into tensors and operations, `device` runs them, `transfer` moves bytes
//!
//! A build's log and its assertions go to the worker's standard error. Vulkan
//! on a software driver needs `GGML_VK_VISIBLE_DEVICES=0` in the environment.
//! The CPU backend has one thread for most plans, one per core for large ones and
//! for one in sixteen of the others, or as many as `CONFORM_GGML_THREADS` says.

mod api;
mod build;
mod catalogue;
mod device;
mod files;
mod graph;
mod identity;
mod image;
mod library;
mod llama;
mod log;
mod memory;
mod transfer;
mod types;

pub use build::{Build, DIR, NAME};

use super::{Device, DeviceError, Driver, Probe};
use catalogue::Catalogue;
use library::Ggml;

/// The backend's name.
const BACKEND: &str = "ggml";

/// The driver; [`drivers`](super::drivers) lists it where `CONFORM_GGML_DIR` is set.
#[derive(Clone, Copy, Debug, Default)]
pub struct GgmlDriver;

impl GgmlDriver {
    /// True if this process was told which build to drive.
    pub fn is_wanted() -> bool {
        std::env::var_os(DIR).is_some()
    }

    /// The build, loaded, and its devices: all of them, or those that a key may mean.
    fn catalogue(wanted: Option<&str>) -> Result<(&'static Ggml, Catalogue), String> {
        let build = Build::from_env().ok_or_else(|| format!("{DIR} names no build"))?;
        let ggml = Ggml::load(&build.dir)?;
        Ok((ggml, Catalogue::read(ggml, &build, wanted)?))
    }
}

impl Driver for GgmlDriver {
    fn name(&self) -> &'static str {
        BACKEND
    }

    fn probe(&self) -> Probe {
        match Self::catalogue(None) {
            Err(why) => Probe::Missing(why),
            Ok((_, Catalogue { entries, absent })) if entries.is_empty() => {
                let why = if absent.is_empty() { "the build has no backend".to_owned() } else { absent.join("; ") };
                Probe::Missing(why)
            }
            Ok((_, Catalogue { entries, absent })) => {
                let devices = entries.into_iter().map(|e| e.info).collect();
                if absent.is_empty() { Probe::Found(devices) } else { Probe::FoundPart { devices, absent } }
            }
        }
    }

    fn open(&self, key: &str) -> Result<Box<dyn Device>, DeviceError> {
        let (ggml, catalogue) = Self::catalogue(Some(key)).map_err(DeviceError)?;
        let entry = catalogue.entries.into_iter().find(|e| e.info.key == key);
        let entry = entry.ok_or_else(|| {
            let why = catalogue.absent.iter().map(|why| format!("; {why}")).collect::<String>();
            DeviceError(format!("the build has no device {key}{why}"))
        })?;
        Ok(Box::new(device::GgmlDevice::open(ggml, entry)?))
    }
}
