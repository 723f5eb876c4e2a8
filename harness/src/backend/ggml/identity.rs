//! What a device of a build says it is.
//!
//! Accessors tell memory and type. The bus id is in the structure of properties alone, which grew: `device_id` came with
//! a new number for integrated GPUs in September 2025, so that a build has both or neither. Which it is shows in how
//! much of a larger piece of memory the build writes.

// Asks ggml about its devices, and reads memory that it wrote.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use super::api::{Base, DEVICE_TYPE_CPU, Dev};
use super::library::text;
use crate::identity::{Claims, Kind, MemoryClaim};

/// `ggml_backend_dev_props` as far as it is looked at.
#[repr(C)]
#[derive(Clone, Copy)]
struct Props {
    name: *const c_char,
    description: *const c_char,
    memory_free: usize,
    memory_total: usize,
    kind: c_int,
    /// What a device can do in older builds, four flags; nothing in newer ones.
    flags: [u8; 4],
    /// The bus id; in older builds there is nothing here.
    device_id: *const c_char,
}

/// Room for the structure of any version, in words.
const ROOM: usize = 128;

/// What no build writes, in every byte.
const UNTOUCHED: usize = usize::from_ne_bytes([0xa5; size_of::<usize>()]);

/// Where `device_id` stands, in words.
const DEVICE_ID: usize = std::mem::offset_of!(Props, device_id) / size_of::<usize>();

/// What a device says, which is at `index` of the list of `driver`: the registry entry called `registry`.
pub(super) fn claims(base: &Base, dev: *mut Dev, registry: &str, driver: String, index: usize) -> Claims {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the device is the registry's own, and the two numbers are written to.
    unsafe { (base.ggml_backend_dev_memory)(dev, &raw mut free, &raw mut total) };
    // SAFETY: the device is the registry's own.
    let number = unsafe { (base.ggml_backend_dev_type)(dev) };
    // SAFETY: as above, and strings live as long as the device.
    let name = unsafe { text((base.ggml_backend_dev_description)(dev)) }.unwrap_or_default();
    let device_id = device_id(base, dev, number);
    let mut claims = Claims::new(driver, index, kind(number, device_id.is_some(), registry, &name));
    // Where nothing is known both are zero.
    claims.memory = MemoryClaim { free: Some(free as u64), total: Some(total as u64) };
    claims.memory = if total == 0 { MemoryClaim::default() } else { claims.memory };
    // Other backends have ids of other kinds there.
    let is_bus_id = matches!(registry, "CUDA" | "ROCm" | "MUSA" | "Vulkan");
    claims.pci = device_id.flatten().filter(|id| is_bus_id && !id.is_empty());
    claims
}

/// The device's id if it has one; `None` around that in builds that do not know ids. `number` is the device's type, by
/// which the structure is recognised.
fn device_id(base: &Base, dev: *mut Dev, number: c_int) -> Option<Option<String>> {
    let mut words = [UNTOUCHED; ROOM];
    // SAFETY: the memory is larger and no less aligned than the structure of any version.
    unsafe { (base.ggml_backend_dev_get_props)(dev, words.as_mut_ptr().cast::<c_void>()) };
    const { assert!(size_of::<Props>() <= ROOM * size_of::<usize>()) };
    // SAFETY: the memory is large and aligned enough, and every pattern of bits is valid in every field.
    let props = unsafe { words.as_ptr().cast::<Props>().read() };
    if words[DEVICE_ID] == UNTOUCHED || props.kind != number {
        return None;
    }
    // SAFETY: the build wrote a word behind type and flags, so it is one that has an id there: null, or a string that
    // lives as long as the device.
    Some(unsafe { text(props.device_id) })
}

/// The kind of a device. In builds with ids 2 is an integrated GPU; in those without, 1 is a GPU of either kind.
fn kind(number: c_int, has_ids: bool, registry: &str, name: &str) -> Kind {
    match number {
        DEVICE_TYPE_CPU => Kind::Cpu,
        // Somebody else's GPU, whatever its type.
        _ if registry == "RPC" => Kind::Virtual,
        // ggml takes Vulkan on the processor for a GPU.
        _ if ["llvmpipe", "SwiftShader"].iter().any(|software| name.starts_with(software)) => Kind::Cpu,
        1 | 2 if has_ids => Kind::of_gpu(name, number == 2),
        // An older build doesn't say which of both a GPU is.
        1 if Kind::of_gpu(name, false).is_part() => Kind::Virtual,
        _ => Kind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_the_build() {
        assert_eq!(kind(0, false, "CPU", "x"), Kind::Cpu);
        assert_eq!(kind(1, false, "Vulkan", "x"), Kind::Unknown);
        assert_eq!(kind(1, false, "CUDA", "NVIDIA A100 MIG 1g.5gb"), Kind::Virtual);
        assert_eq!(kind(2, false, "BLAS", "x"), Kind::Unknown);
        assert_eq!(kind(1, true, "CUDA", "NVIDIA H200"), Kind::Discrete);
        assert_eq!(kind(2, true, "Vulkan", "Intel(R) Graphics"), Kind::Integrated);
        assert_eq!(kind(3, true, "BLAS", "x"), Kind::Unknown);
        assert_eq!(kind(1, true, "RPC", "127.0.0.1:50052"), Kind::Virtual);
        assert_eq!(kind(1, true, "Vulkan", "llvmpipe (LLVM 15.0.6, 256 bits)"), Kind::Cpu);
    }

    #[test]
    fn the_id_stands_behind_type_and_flags() {
        assert_eq!(DEVICE_ID * size_of::<usize>(), 40);
        assert_eq!(std::mem::offset_of!(Props, kind), 32);
    }
}
