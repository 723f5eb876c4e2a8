//! OpenCL: our own kernels on any OpenCL 1.2 device.
//!
//! The loader is opened at run time; a machine without one, or without a
//! device, says so in [`Probe::Missing`]. A device's key is `opencl-`, a short
//! name of its platform, `-` and its position there: `opencl-pocl-0`. One that
//! computes in f16 is there once more, as `opencl-intel-0+f16`: what it does to
//! MXFP4 experts of many tokens, operands in f16 and sums of 8 products in f16,
//! is tested beside what it does in f32.
//!
//! `program` holds the kernel sources and compiles each file at
//! [`open`](Driver::open), in the forms that `forms` chooses for the device;
//! `runtime` owns context, queue and memory;
//! `transfer`, `mapped` and `gather` move bytes; `weights`, `mul_mat_id`, `argsort` and `top_k` are one concern each, and
//! `device` puts them together; `oclgrind` is about a platform that interprets kernels and watches them. Options for the kernel compiler may be added
//! with the environment variable `CONFORM_OPENCL_OPTIONS`.
//!
//! Arithmetic is f32 throughout but for `+f16`, without contraction; the order
//! of products and additions, and so the number of roundings, stands in each
//! kernel's header.

mod argsort;
mod device;
mod error;
mod forms;
mod gather;
mod identity;
mod mapped;
mod memory;
mod mul_mat_id;
mod oclgrind;
mod program;
mod runtime;
mod top_k;
mod transfer;
mod weights;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use opencl3::device::{CL_DEVICE_TYPE_ALL, CL_FP_DENORM, Device as ClDevice};
use opencl3::error_codes::{CL_PLATFORM_NOT_FOUND_KHR, ClError, DLOPEN_RUNTIME_LOAD_FAILED};
use opencl3::platform::{Platform, get_platforms};

use super::gather::Gathering;
use super::routing::Reuse;
use super::{Capabilities, Device, DeviceError, DeviceInfo, Driver, Probe};
use crate::mutants::Edits;
use forms::Forms;
pub use program::{SOURCES, Source, edited};

/// The driver of every OpenCL device on the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenCl;

const NAME: &str = "opencl";

impl Driver for OpenCl {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prepare_process(&self) {
        oclgrind::prepare_process();
    }

    fn probe(&self) -> Probe {
        match discover() {
            Ok(found) => Probe::Found(found.into_iter().map(|f| f.info).collect()),
            Err(why) => Probe::Missing(why),
        }
    }

    fn open(&self, key: &str) -> Result<Box<dyn Device>, DeviceError> {
        self.open_with(key, &SOURCES)
    }

    fn open_mutant(&self, key: &str, edits: &Edits) -> Result<Box<dyn Device>, DeviceError> {
        self.open_with(key, &edited(edits.opencl).map_err(DeviceError)?)
    }

    fn open_reusing(&self, key: &str, reuse: Reuse) -> Result<Box<dyn Device>, DeviceError> {
        Ok(Box::new(Self::open_device(key, &SOURCES)?.with_reuse(reuse)))
    }
}

impl OpenCl {
    /// Opens a device with these kernel sources: [`SOURCES`], or an edited copy of them.
    pub fn open_with(&self, key: &str, sources: &[Source]) -> Result<Box<dyn Device>, DeviceError> {
        Ok(Box::new(Self::open_device(key, sources)?))
    }

    /// Opens a device that brings pieces together on the device however few they are, and even if it shares the host's
    /// memory: so that few of them show what many may meet.
    pub fn open_gathering(&self, key: &str) -> Result<Box<dyn Device>, DeviceError> {
        Ok(Box::new(Self::open_device(key, &SOURCES)?.with_gathering(Gathering::ALWAYS)))
    }

    fn open_device(key: &str, sources: &[Source]) -> Result<device::OpenClDevice, DeviceError> {
        let found = discover().map_err(DeviceError)?;
        let wanted = found.into_iter().find(|f| f.info.key == key);
        let found = wanted.ok_or_else(|| DeviceError(format!("no OpenCL device has the key {key}")))?;
        device::OpenClDevice::open(found, sources)
    }
}

/// A device on its platform.
struct Found {
    info: DeviceInfo,
    device: ClDevice,
    forms: Forms,
}

/// PoCL 3.1, asked for its devices by two threads at once for the first time, tells one of them it has none.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// All devices of all platforms, or one line that says why there are none.
fn discover() -> Result<Vec<Found>, String> {
    let _held = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let platforms = get_platforms().map_err(|e| match e.0 {
        DLOPEN_RUNTIME_LOAD_FAILED => "no OpenCL loader: libOpenCL could not be opened".to_owned(),
        CL_PLATFORM_NOT_FOUND_KHR => "the OpenCL loader knows no platform".to_owned(),
        _ => format!("clGetPlatformIDs: {e}"),
    })?;
    let mut found = Vec::new();
    let mut without = Vec::new();
    let mut seen = BTreeMap::new();
    for platform in platforms {
        let name = platform.name().map_err(|e| format!("clGetPlatformInfo CL_PLATFORM_NAME: {e}"))?;
        let short = unique(&mut seen, short_name(&name));
        match platform_devices(&platform, &name, &short) {
            Ok(devices) if devices.is_empty() => without.push(format!("{name} has no device")),
            Ok(devices) => found.extend(devices),
            Err(e) => without.push(format!("{name} answers {e}")),
        }
    }
    match found.is_empty() {
        false => Ok(found),
        true if without.is_empty() => Err("the OpenCL loader knows no platform".to_owned()),
        true => Err(without.join(", ")),
    }
}

fn platform_devices(platform: &Platform, name: &str, short: &str) -> Result<Vec<Found>, ClError> {
    let version = platform.version()?;
    let watched = name.starts_with(oclgrind::PLATFORM);
    let describe = |(index, id)| {
        let device = ClDevice::new(id);
        let properties = BTreeMap::from([
            ("platform".to_owned(), name.to_owned()),
            ("opencl_c".to_owned(), device.opencl_c_version()?),
            ("compute_units".to_owned(), device.max_compute_units()?.to_string()),
            ("global_mem".to_owned(), device.global_mem_size()?.to_string()),
            ("local_mem".to_owned(), device.local_mem_size()?.to_string()),
            ("max_work_group".to_owned(), device.max_work_group_size()?.to_string()),
            ("max_alloc".to_owned(), device.max_mem_alloc_size()?.to_string()),
        ]);
        let info = DeviceInfo {
            key: format!("{NAME}-{short}-{index}"),
            backend: NAME.to_owned(),
            name: device.name()?.trim().to_owned(),
            driver: format!("{}, driver {}", version.trim(), device.driver_version()?.trim()),
            identity: identity::claims(&device, format!("{NAME}-{short}"), index)?,
            properties,
            capabilities: Capabilities {
                guards: !watched,
                watched,
                flushes_subnormals: device.single_fp_config()? & CL_FP_DENORM == 0,
                ..Capabilities::OWN
            },
        };
        let plain = Forms { watched, ..Forms::of(&device)? };
        let mut found = vec![Found { info: plain.describe(info.clone()), device, forms: plain }];
        if let Some(flushes) = forms::half(&device)? {
            let forms = Forms { half: true, ..plain };
            let capabilities = Capabilities { flushes_f16: flushes, ..info.capabilities };
            found.push(Found { info: forms.describe(DeviceInfo { capabilities, ..info }), device, forms });
        }
        Ok(found)
    };
    let devices = platform.get_devices(CL_DEVICE_TYPE_ALL)?.into_iter().enumerate();
    let found = devices.map(describe).collect::<Result<Vec<_>, ClError>>()?;
    Ok(found.into_iter().flatten().collect())
}

/// The word for a platform in device keys.
fn short_name(platform: &str) -> String {
    const KNOWN: [(&str, &str); 7] = [
        ("Portable Computing Language", "pocl"),
        ("rusticl", "rusticl"),
        ("NVIDIA CUDA", "nvidia"),
        ("Intel(R) OpenCL", "intel"),
        ("AMD Accelerated", "amd"),
        ("Oclgrind", "oclgrind"),
        ("Apple", "apple"),
    ];
    if let Some((_, short)) = KNOWN.iter().find(|(prefix, _)| platform.starts_with(prefix)) {
        return (*short).to_owned();
    }
    let slug: String = platform.chars().filter(char::is_ascii_alphanumeric).collect();
    if slug.is_empty() { "platform".to_owned() } else { slug.to_ascii_lowercase() }
}

/// The name itself the first time it is seen, then with 2, 3 … behind it.
fn unique(seen: &mut BTreeMap<String, usize>, name: String) -> String {
    let count = seen.entry(name.clone()).or_default();
    *count += 1;
    if *count == 1 { name } else { format!("{name}{count}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_have_short_names() {
        for (platform, short) in [
            ("Portable Computing Language", "pocl"),
            ("rusticl", "rusticl"),
            ("NVIDIA CUDA", "nvidia"),
            ("Intel(R) OpenCL HD Graphics", "intel"),
            ("AMD Accelerated Parallel Processing", "amd"),
            ("Some Vendor's CL/2", "somevendorscl2"),
            ("☃", "platform"),
        ] {
            assert_eq!(short_name(platform), short);
        }
    }

    #[test]
    fn equal_names_are_numbered() {
        let mut seen = BTreeMap::new();
        let names = ["intel", "pocl", "intel", "intel"].map(|n| unique(&mut seen, n.to_owned()));
        assert_eq!(names, ["intel", "pocl", "intel2", "intel3"]);
    }
}
