//! What there is: driver, compiler, devices.

// The driver's questions take pointers to their answers.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};

use conform_cases::model::Kernels;
use cudarc::driver::sys::CUuuid;

use super::NAME;
use super::api::{Api, CUdevice, CUdevice_attribute, Code};
use super::nvrtc::Nvrtc;
use crate::backend::{Capabilities, DeviceInfo};
use crate::identity::{Claims, Kind, MemoryClaim, Uuid};

/// Environment variable that keeps kernels off tensor cores where it is `off`.
const TENSOR_CORES: &str = "CONFORM_CUDA_TENSOR_CORES";

/// The oldest driver whose functions and kernels are known to work: CUDA 12.0, as the driver counts.
const OLDEST: c_int = 12000;

/// Everything that is needed to open devices.
pub(super) struct Found {
    pub(super) devices: Vec<FoundDevice>,
    pub(super) nvrtc: Nvrtc,
}

/// A device.
pub(super) struct FoundDevice {
    pub(super) info: DeviceInfo,
    pub(super) device: CUdevice,
    /// Compute capability times ten.
    pub(super) chip: u32,
}

/// All devices, or one line that says why there are none.
pub(super) fn discover() -> Result<Found, String> {
    let api = Api::get()?;
    let asking = Asking { api };
    // SAFETY: the pointer is valid for the call.
    let version = asking.number("cuDriverGetVersion", |n| unsafe { (api.cuDriverGetVersion)(n) })?;
    if version < OLDEST {
        let (has, needs) = (dotted(version), dotted(OLDEST));
        return Err(format!("the NVIDIA driver is too old: it supports CUDA {has}, {needs} is needed"));
    }
    // SAFETY: the pointer is valid for the call.
    let count = asking.number("cuDeviceGetCount", |n| unsafe { (api.cuDeviceGetCount)(n) })?;
    if count < 1 {
        return Err("the NVIDIA driver has no device".to_owned());
    }
    let nvrtc = Nvrtc::open(Some(version / 1000))
        .map_err(|why| format!("{why} (the NVIDIA driver, CUDA {}, has {count} device(s))", dotted(version)))?;
    let driver = format!("CUDA {}, NVRTC {}", dotted(version), nvrtc.version());
    let devices = (0..count).map(|number| asking.device(number, &driver)).collect::<Result<_, _>>()?;
    Ok(Found { devices, nvrtc })
}

/// Whose precision model holds: tensor cores multiply bf16 from compute capability 8.0 on.
fn kernels(chip: u32) -> Kernels {
    let is_off = std::env::var_os(TENSOR_CORES).is_some_and(|v| v == "off");
    if chip >= 80 && !is_off { Kernels::OwnTensor } else { Kernels::Own }
}

/// A version as the driver counts, in words.
fn dotted(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Asks the driver about devices.
struct Asking {
    api: &'static Api,
}

impl Asking {
    fn device(&self, number: c_int, driver: &str) -> Result<FoundDevice, String> {
        let api = self.api;
        // SAFETY: the pointer is valid for the call.
        let device = self.number("cuDeviceGet", |d| unsafe { (api.cuDeviceGet)(d, number) })?;
        // SAFETY: the pointer is valid for the call, and the length is that of the buffer.
        let name = self.text("cuDeviceGetName", |t, len| unsafe { (api.cuDeviceGetName)(t, len, device) })?;
        // SAFETY: as above.
        let bus = self.text("cuDeviceGetPCIBusId", |t, len| unsafe { (api.cuDeviceGetPCIBusId)(t, len, device) })?;
        let mut bytes: usize = 0;
        // SAFETY: the pointer is valid for the call.
        self.check("cuDeviceTotalMem", unsafe { (api.cuDeviceTotalMem_v2)(&mut bytes, device) })?;
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: the pointer is valid for the call.
        self.check("cuDeviceGetUuid", unsafe { (api.cuDeviceGetUuid_v2)(&mut uuid, device) })?;
        let attribute = |a: CUdevice_attribute| {
            // SAFETY: the pointer is valid for the call.
            self.number("cuDeviceGetAttribute", |n| unsafe { (api.cuDeviceGetAttribute)(n, a, device) })
        };
        use CUdevice_attribute as A;
        let major = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let place = [
            attribute(A::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        ];
        let units = attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let chip =
            u32::try_from(10 * major + minor).map_err(|_| format!("{name} has compute capability {major}.{minor}"))?;
        let properties = [
            ("compute_capability", format!("{major}.{minor}")),
            ("compute_units", units.to_string()),
            ("global_mem", bytes.to_string()),
            // What programs make bus ids of that do not ask for one; some drivers have been wrong here.
            ("pci_attributes", format!("{}:{}:{}", place[0], place[1], place[2])),
        ];
        let kind = Kind::of_gpu(&name, attribute(A::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0);
        let identity = Claims {
            pci: Some(bus),
            uuid: Some(Uuid::from_bytes(uuid.bytes.map(|b| b as u8)).to_string()),
            // What is free would need a context.
            memory: MemoryClaim { free: None, total: Some(bytes as u64) },
            ..Claims::new(NAME, usize::try_from(number).unwrap_or_default(), kind)
        };
        let info = DeviceInfo {
            key: format!("{NAME}-{number}"),
            backend: NAME.to_owned(),
            name,
            driver: driver.to_owned(),
            identity,
            properties: properties.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<BTreeMap<_, _>>(),
            capabilities: Capabilities { kernels: kernels(chip), ..Capabilities::OWN },
        };
        Ok(FoundDevice { info, device, chip })
    }

    fn check(&self, call: &str, code: Code) -> Result<(), String> {
        self.api.check(code).map_err(|e| format!("{call}: {e}"))
    }

    fn number(&self, call: &str, ask: impl FnOnce(*mut c_int) -> Code) -> Result<c_int, String> {
        let mut number = 0;
        self.check(call, ask(&mut number)).map(|()| number)
    }

    fn text(&self, call: &str, ask: impl FnOnce(*mut c_char, c_int) -> Code) -> Result<String, String> {
        let mut text = [0u8; 256];
        self.check(call, ask(text.as_mut_ptr().cast(), text.len() as c_int))?;
        let text = CStr::from_bytes_until_nul(&text).map_err(|_| format!("{call}: its answer has no end"))?;
        Ok(text.to_string_lossy().trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_devices_are_told_by() {
        assert_eq!((kernels(75), kernels(80)), (Kernels::Own, Kernels::OwnTensor));
        assert_eq!((dotted(12000), dotted(13020)), ("12.0".to_owned(), "13.2".to_owned()));
    }
}
