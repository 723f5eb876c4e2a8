//! CUDA: our own kernels on NVIDIA's GPUs.
//!
//! Nothing is linked. The driver's library and the run-time compiler NVRTC are
//! opened when a worker looks for devices; a machine without one of them, with
//! one that is too old, or without a GPU says so in [`Probe::Missing`]. A
//! device's key is `cuda-` and the driver's number for it: `cuda-0`.
//!
//! `api` and `nvrtc` are the two libraries; `program` holds the kernel sources
//! and compiles them for the chip at [`open`](Driver::open), which `cache`
//! makes short the next time; `runtime` owns context and memory; `transfer`
//! and `gather` queue bytes that are moved; `weights`,
//! `mul_mat_id`, `argsort` and `top_k` are one concern each, and `device` puts
//! them together.
//!
//! Sums are f32 throughout; the order of products and additions, and so the
//! number of roundings, stands in each kernel's header. Where MXFP4 experts
//! are multiplied on tensor cores the device says so, since they truncate:
//! that has a precision model of its own. `CONFORM_CUDA_TENSOR_CORES=off`
//! makes a device that does without.

mod api;
mod argsort;
mod cache;
mod device;
mod gather;
mod memory;
mod mul_mat_id;
mod nvrtc;
mod probe;
mod program;
mod runtime;
mod top_k;
mod transfer;
mod weights;

use super::gather::Gathering;
use super::routing::Reuse;
use super::{Device, DeviceError, Driver, Probe};
use crate::mutants::Edits;
pub use nvrtc::{Nvrtc, Target};
pub use program::{SOURCES, Source, compile_all, edited};

/// The driver of every CUDA device on the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cuda;

const NAME: &str = "cuda";

impl Driver for Cuda {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> Probe {
        match probe::discover() {
            Ok(found) => Probe::Found(found.devices.into_iter().map(|d| d.info).collect()),
            Err(why) => Probe::Missing(why),
        }
    }

    fn open(&self, key: &str) -> Result<Box<dyn Device>, DeviceError> {
        self.open_with(key, &SOURCES)
    }

    fn open_mutant(&self, key: &str, edits: &Edits) -> Result<Box<dyn Device>, DeviceError> {
        self.open_with(key, &edited(edits.cuda).map_err(DeviceError)?)
    }

    fn open_reusing(&self, key: &str, reuse: Reuse) -> Result<Box<dyn Device>, DeviceError> {
        Ok(Box::new(Self::find(key, &SOURCES)?.with_reuse(reuse)))
    }
}

impl Cuda {
    /// Opens a device with these sources: [`SOURCES`], or an edited copy of them.
    pub fn open_with(&self, key: &str, sources: &[Source]) -> Result<Box<dyn Device>, DeviceError> {
        Ok(Box::new(Self::find(key, sources)?))
    }

    /// Opens a device that brings pieces together however few they are: so that few of them show what many may meet.
    pub fn open_gathering(&self, key: &str) -> Result<Box<dyn Device>, DeviceError> {
        Ok(Box::new(Self::find(key, &SOURCES)?.with_gathering(Gathering::ALWAYS)))
    }

    fn find(key: &str, sources: &[Source]) -> Result<device::CudaDevice, DeviceError> {
        let found = probe::discover().map_err(DeviceError)?;
        let wanted = found.devices.into_iter().find(|d| d.info.key == key);
        let wanted = wanted.ok_or_else(|| DeviceError(format!("no CUDA device has the key {key}")))?;
        device::CudaDevice::open(wanted, found.nvrtc, sources.to_vec())
    }
}
