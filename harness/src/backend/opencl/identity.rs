//! What an OpenCL device says it is.
//!
//! Place and UUID are asked for by the extensions of the standard. The queries of single vendors know them as well, but
//! one of them is known to swap device and function.

use opencl3::device::{
    CL_DEVICE_PCI_BUS_INFO_KHR, CL_DEVICE_TYPE_CPU, CL_DEVICE_TYPE_GPU, Device as ClDevice, get_device_data,
};
use opencl3::error_codes::ClError;

use super::forms::has_extension;
use crate::identity::{Claims, Kind, MemoryClaim, Uuid};

/// What a device says, which stands at `index` in the list of `driver`.
pub(super) fn claims(device: &ClDevice, driver: String, index: usize) -> Result<Claims, ClError> {
    let mut claims = Claims::new(driver, index, kind(device)?);
    claims.memory = MemoryClaim { free: None, total: Some(device.global_mem_size()?) };
    // A driver that names an extension and then doesn't answer tells nothing.
    if has_extension(device, "cl_khr_pci_bus_info")? {
        claims.pci = get_device_data(device.id(), CL_DEVICE_PCI_BUS_INFO_KHR).ok().and_then(|data| bus_id(&data));
    }
    if has_extension(device, "cl_khr_device_uuid")? {
        claims.uuid = device.uuid_khr().ok().map(|bytes| Uuid::from_bytes(bytes).to_string());
        if device.luid_valid_khr() == Ok(true) {
            claims.luid = device.luid_khr().ok().map(|bytes| bytes.iter().map(|b| format!("{b:02x}")).collect());
        }
    }
    Ok(claims)
}

fn kind(device: &ClDevice) -> Result<Kind, ClError> {
    Ok(match device.dev_type()? {
        of if of & CL_DEVICE_TYPE_CPU != 0 => Kind::Cpu,
        of if of & CL_DEVICE_TYPE_GPU != 0 => Kind::of_gpu(&device.name()?, device.host_unified_memory()?),
        _ => Kind::Unknown,
    })
}

/// A `cl_device_pci_bus_info_khr`, four numbers, as text; `None` if it is something else.
fn bus_id(data: &[u8]) -> Option<String> {
    let words: Vec<u32> =
        data.chunks(4).map(|word| Some(u32::from_ne_bytes(word.try_into().ok()?))).collect::<Option<_>>()?;
    let [domain, bus, device, function] = words[..] else { return None };
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_numbers_are_a_bus_id() {
        let data = |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<u8>>();
        assert_eq!(bus_id(&data(&[0, 0x3b, 0, 1])).as_deref(), Some("0000:3b:00.1"));
        assert_eq!(bus_id(&data(&[0x10000, 0xe1, 0x1f, 7])).as_deref(), Some("10000:e1:1f.7"));
        assert_eq!(bus_id(&data(&[0, 0x3b, 0])), None);
        assert_eq!(bus_id(&data(&[0, 0x3b, 0, 0])[..15]), None);
    }
}
