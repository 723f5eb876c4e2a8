//! The devices of a build and their keys.
//!
//! `ggml-NAME-cpu-haswell` is a CPU variant, `ggml-NAME-cpu` the CPU backend of
//! a build that has only one, and `ggml-NAME-vulkan-0` the first device of any
//! other backend. Where the CPU backend offers another type of buffer for
//! weights, which changes their layout and the code that multiplies them, it is
//! one more device: `ggml-NAME-cpu-haswell+repack`.

// Asks ggml about its devices.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};

use conform_cases::model::Kernels;

use super::api::{BufferType, DEVICE_TYPE_CPU, Dev, ExtraBufferTypes, GetFeatures, Reg, SetThreads};
use super::build::Build;
use super::identity;
use super::library::{Ggml, NoModule, text};
use crate::backend::{Capabilities, DeviceInfo};

/// A device that can be opened.
pub(super) struct Entry {
    pub(super) info: DeviceInfo,
    pub(super) handle: Handle,
}

/// What ggml needs to hear to open it.
#[derive(Clone, Copy)]
pub(super) struct Handle {
    pub(super) dev: *mut Dev,
    /// It computes in the machine's own memory.
    pub(super) is_cpu: bool,
    /// How to set the number of threads, where the backend has any.
    pub(super) set_threads: Option<SetThreads>,
    /// The type of buffer for weights, where it is not the device's usual one: it takes only whole tensors, and gives
    /// nothing back.
    pub(super) packed: Option<*mut BufferType>,
}

/// All devices, and why there are not more.
#[derive(Default)]
pub(super) struct Catalogue {
    pub(super) entries: Vec<Entry>,
    /// One line each.
    pub(super) absent: Vec<String>,
}

/// One backend on its way into the catalogue.
struct Backend<'a> {
    ggml: &'a Ggml,
    build: &'a Build,
    /// What its devices' keys begin with.
    key: String,
    reg: *mut Reg,
    properties: BTreeMap<String, String>,
}

impl Catalogue {
    /// Loads the backends of a build: all of them, or only what a device's key may belong to. The error names a library
    /// that belongs to another build.
    pub(super) fn read(ggml: &Ggml, build: &Build, wanted: Option<&str>) -> Result<Self, String> {
        let mut catalogue = Catalogue::default();
        for reg in ggml.linked() {
            // SAFETY: the pointer is the registry's own.
            let name = unsafe { text((ggml.base.ggml_backend_reg_name)(reg)) }.unwrap_or_default();
            let key = format!("{}-{}", build.prefix(), word(&name));
            let properties = BTreeMap::from([("module".to_owned(), "linked into libggml".to_owned())]);
            catalogue.add(&Backend { ggml, build, key, reg, properties });
        }
        let mut other_processor = Vec::new();
        for module in &ggml.files.modules {
            let mut key = format!("{}-{}", build.prefix(), module.backend);
            let mut properties = BTreeMap::from([("module".to_owned(), module.file())]);
            if let Some(variant) = &module.variant {
                key = format!("{key}-{variant}");
                properties.insert("variant".to_owned(), variant.clone());
            }
            let is_left_out = Build::is_cpu_only() && module.backend != "cpu";
            if is_left_out || wanted.is_some_and(|wanted| !may_be_of(wanted, &key)) {
                continue;
            }
            match ggml.load_module(module) {
                Ok(reg) => catalogue.add(&Backend { ggml, build, key, reg, properties }),
                Err(NoModule::Linked) => {}
                Err(NoModule::OtherProcessor) => other_processor.push(module.file()),
                Err(NoModule::Foreign(why)) => return Err(why),
                Err(NoModule::Failed(why)) => catalogue.absent.push(why),
            }
        }
        if !other_processor.is_empty() {
            catalogue.absent.push(format!("for another processor: {}", other_processor.join(", ")));
        }
        Ok(catalogue)
    }

    fn add(&mut self, backend: &Backend<'_>) {
        let devices = backend.devices();
        if devices.is_empty() {
            let module = &backend.properties["module"];
            let hint = if backend.key.ends_with("-vulkan") && std::env::var_os(VISIBLE).is_none() {
                format!("; software drivers are left out unless {VISIBLE} names them, for example 0")
            } else {
                String::new()
            };
            self.absent.push(format!("{}: {module} has no device here{hint}", backend.key));
        }
        self.entries.extend(devices);
    }
}

/// Which Vulkan devices a build may use; without it those of type CPU are skipped.
const VISIBLE: &str = "GGML_VK_VISIBLE_DEVICES";

/// The word for a backend in keys: its module's where it has one, and the same where it hasn't.
fn word(registered: &str) -> String {
    match registered {
        "MTL" => "metal".to_owned(),
        other => other.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect(),
    }
}

/// Could a device's key belong to the backend whose keys begin with `backend`?
fn may_be_of(key: &str, backend: &str) -> bool {
    key.strip_prefix(backend).is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', '-']))
}

impl Backend<'_> {
    fn devices(&self) -> Vec<Entry> {
        let base = &self.ggml.base;
        // SAFETY: the pointer comes from the registry, and indices are below the count.
        let devs: Vec<*mut Dev> = unsafe {
            (0..(base.ggml_backend_reg_dev_count)(self.reg))
                .map(|i| (base.ggml_backend_reg_dev_get)(self.reg, i))
                .collect()
        };
        let mut entries = Vec::new();
        for (index, dev) in devs.into_iter().enumerate() {
            // SAFETY: the device is the registry's own.
            let is_cpu = unsafe { (base.ggml_backend_dev_type)(dev) } == DEVICE_TYPE_CPU;
            let key = if is_cpu && index == 0 { self.key.clone() } else { format!("{}-{index}", self.key) };
            // SAFETY: the name is that of a function of this type wherever it is known.
            let set_threads = unsafe { self.function::<SetThreads>(c"ggml_backend_set_n_threads") };
            // SAFETY: the device has a usual type of buffer.
            let usual = unsafe { (base.ggml_backend_dev_buffer_type)(dev) };
            let info = self.describe(dev, index, key, is_cpu, usual);
            for packed in self.packed_buffers(dev) {
                let mut info = info.clone();
                let name = self.buffer_type_name(packed);
                let word = packed_word(&name);
                info.capabilities.readable_inputs = false;
                info.capabilities.kernels = if word == REPACK { Kernels::GgmlRepack } else { Kernels::Unknown };
                info.key = format!("{}+{word}", info.key);
                info.properties.insert("buffer_type".to_owned(), name);
                entries.push(Entry { info, handle: Handle { dev, is_cpu, set_threads, packed: Some(packed) } });
            }
            entries.push(Entry { info, handle: Handle { dev, is_cpu, set_threads, packed: None } });
        }
        entries.sort_by(|a, b| a.info.key.cmp(&b.info.key));
        entries
    }

    fn describe(&self, dev: *mut Dev, index: usize, key: String, is_cpu: bool, usual: *mut BufferType) -> DeviceInfo {
        let base = &self.ggml.base;
        // SAFETY: the device is the registry's own, and strings live as long as it.
        let (name, description, registry) = unsafe {
            let name = text((base.ggml_backend_dev_name)(dev)).unwrap_or_default();
            let description = text((base.ggml_backend_dev_description)(dev)).unwrap_or_default();
            (name, description, text((base.ggml_backend_reg_name)(self.reg)).unwrap_or_default())
        };
        let identity = identity::claims(base, dev, &registry, self.key.clone(), index);
        let (version, commit) = self.ggml.version();
        let mut properties = self.properties.clone();
        let mut put = |name: &str, value: Option<String>| {
            properties.extend(value.filter(|v| !v.is_empty()).map(|v| (name.to_owned(), v)));
        };
        put("registry", Some(registry.clone()));
        put("device", Some(name));
        put("buffer_type", Some(self.buffer_type_name(usual)));
        put("memory", identity.memory.total.map(|total| total.to_string()));
        put("features", self.features());
        put("copies", Some(super::transfer::COPIES.to_owned()));
        put("version", version.clone());
        put("commit", commit.clone());
        let told = [version.map(|v| format!("version {v}")), commit.map(|c| format!("commit {c}"))];
        let told: Vec<String> = told.into_iter().flatten().collect();
        let driver = format!("ggml {}{}{}", self.build.name, if told.is_empty() { "" } else { ", " }, told.join(", "));
        let capabilities = Capabilities {
            kernels: kernels(
                &registry,
                &description,
                properties.get("features").map_or("", String::as_str),
                base.ggml_build_forward_select.is_some(),
            ),
            readable_inputs: true,
            scratch_poison: false,
            // No build promises it.
            guards: false,
            watched: false,
            deterministic: false,
            // The CPU backend leaves the processor's default alone; GPU backends are compiled as the driver likes.
            flushes_subnormals: !is_cpu,
            flushes_f16: false,
        };
        DeviceInfo {
            key,
            backend: super::BACKEND.to_owned(),
            name: description,
            driver,
            identity,
            properties,
            capabilities,
        }
    }

    /// Other types of buffer that the device offers for weights.
    fn packed_buffers(&self, dev: *mut Dev) -> Vec<*mut BufferType> {
        // SAFETY: the name is that of a function of this type wherever it is known.
        let Some(list) = (unsafe { self.function::<ExtraBufferTypes>(c"ggml_backend_dev_get_extra_bufts") }) else {
            return Vec::new();
        };
        // SAFETY: the device belongs to the registry that gave the function; the list, if any, ends with a null pointer.
        unsafe { terminated(list(dev), |t: &*mut BufferType| t.is_null()).copied().collect() }
    }

    fn buffer_type_name(&self, buffer_type: *mut BufferType) -> String {
        // SAFETY: the pointer comes from the device, and the string lives as long as it.
        unsafe { text((self.ggml.base.ggml_backend_buft_name)(buffer_type)) }.unwrap_or_default()
    }

    /// What the backend was compiled to use, as it says: `AVX2=1 FMA=1`.
    fn features(&self) -> Option<String> {
        // SAFETY: the name is that of a function of this type wherever it is known; its list ends with a null name,
        // and names and values are strings that live as long as the library.
        let features: Vec<String> = unsafe {
            let list = self.function::<GetFeatures>(c"ggml_backend_get_features")?(self.reg);
            let pair = |f: &super::api::Feature| Some(format!("{}={}", text(f.name)?, text(f.value)?));
            terminated(list, |f| f.name.is_null()).filter_map(pair).collect()
        };
        Some(features.join(" "))
    }

    /// A function that only some backends have.
    ///
    /// # Safety
    /// `F` must be the type of the function that ggml knows by this name.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the registry is ggml's own and the name a terminated string.
        let address = unsafe { (self.ggml.base.ggml_backend_reg_get_proc_address)(self.reg, name.as_ptr()) };
        // SAFETY: `F` has the size of a pointer, and by the caller's promise is the type of what is there.
        (!address.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
    }
}

/// The elements of a C list before the one that ends it. A null list has none.
///
/// # Safety
/// The list must be null, or live as long as the program and have an element for which `is_end` holds.
unsafe fn terminated<T: 'static>(list: *const T, is_end: impl Fn(&T) -> bool) -> impl Iterator<Item = &'static T> {
    let first = (!list.is_null()).then_some(list);
    // SAFETY: the caller's promise; each element is looked at only if none before it ends the list.
    let at = std::iter::successors(first, |p| Some(unsafe { p.add(1) })).map(|p| unsafe { &*p });
    at.take_while(move |t| !is_end(t))
}

/// Whose kernels run where weights lie in the usual buffers: that decides the precision model.
///
/// Vulkan's way with 2 to 8 tokens changed in January 2026, after b7347 and before b7836 (llama.cpp #18918), and left no
/// trace in the interface. `ggml_build_forward_select` came to libggml-base in the same days (#18550), and is what tells:
/// every build looked at has both or neither. The version does not, as 0.9.5 stood before and after. On NVIDIA cards it
/// takes integer dot products and matrix cores, which all have whose drivers know Vulkan 1.3, from Turing on.
fn kernels(registry: &str, card: &str, features: &str, has_forward_select: bool) -> Kernels {
    match registry {
        "Vulkan" if has_forward_select && card.starts_with("NVIDIA") => Kernels::GgmlVulkanNvidia,
        "Vulkan" if has_forward_select => Kernels::GgmlVulkan,
        "Vulkan" => Kernels::GgmlVulkanTilesFromTwo,
        "CUDA" => Kernels::GgmlCuda,
        "CPU" if features.split(' ').any(|f| f == "AVX=1") => Kernels::GgmlCpuAvx,
        "CPU" if cfg!(target_arch = "x86_64") => Kernels::GgmlCpuPlain,
        _ => Kernels::Unknown,
    }
}

/// The word for ggml's own repacked layouts.
const REPACK: &str = "repack";

/// What a type of buffer is called in keys: `CPU_REPACK` is `repack`, and so is what it was called before April 2025.
fn packed_word(buffer_type: &str) -> String {
    match buffer_type {
        "CPU_AARCH64" => REPACK.to_owned(),
        name => name
            .strip_prefix("CPU_")
            .unwrap_or(name)
            .to_ascii_lowercase()
            .replace(|c: char| !c.is_ascii_alphanumeric(), "_"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_belongs_to_one_cpu_variant() {
        assert!(may_be_of("ggml-a-cpu-sse42+repack", "ggml-a-cpu-sse42"));
        assert!(may_be_of("ggml-a-vulkan-1", "ggml-a-vulkan"));
        assert!(!may_be_of("ggml-a-cpu-skylakex", "ggml-a-cpu-skylake"));
        assert!(!may_be_of("ggml-b-cpu", "ggml-a-cpu"));
    }

    #[test]
    fn kernels_follow_registry_and_features() {
        assert_eq!(kernels("CPU", "", "SSE3=1 AVX=1 AVX2=1", true), Kernels::GgmlCpuAvx);
        assert_ne!(kernels("CPU", "", "SSE3=1 AVX_VNNI=1", true), Kernels::GgmlCpuAvx);
        assert_eq!(kernels("Vulkan", "llvmpipe", "", true), Kernels::GgmlVulkan);
        assert_eq!(kernels("Vulkan", "NVIDIA H200", "", true), Kernels::GgmlVulkanNvidia);
        assert_eq!(kernels("Vulkan", "NVIDIA H200", "", false), Kernels::GgmlVulkanTilesFromTwo);
        assert_eq!(kernels("CUDA", "NVIDIA H200", "", true), Kernels::GgmlCuda);
        assert_eq!(kernels("MTL", "", "", true), Kernels::Unknown);
    }

    #[test]
    fn words() {
        assert_eq!(word("Vulkan"), "vulkan");
        assert_eq!(word("MTL"), "metal");
        assert_eq!(packed_word("CPU_REPACK"), "repack");
        assert_eq!(packed_word("AMX"), "amx");
    }
}
