//! Variables of the environment that hide devices or put them in another order.
//!
//! Drivers obey them by themselves. They are read here so that a listing can say why a device is not in it, and notice a
//! driver that doesn't obey.

use std::collections::BTreeMap;

use super::{Listed, Uuid};

/// NVIDIA's variable, for CUDA and OpenCL.
pub const CUDA: &str = "CUDA_VISIBLE_DEVICES";

/// The variable of ggml's Vulkan backend.
pub const GGML_VULKAN: &str = "GGML_VK_VISIBLE_DEVICES";

/// Everything that hides devices from some driver.
const VARIABLES: [&str; 16] = [
    CUDA,
    GGML_VULKAN,
    "CUDA_DEVICE_ORDER",
    "GPU_DEVICE_ORDINAL",
    "HIP_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "OCL_ICD_FILENAMES",
    "OCL_ICD_VENDORS",
    "ONEAPI_DEVICE_SELECTOR",
    "POCL_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "RUSTICL_ENABLE",
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_LOADER_DRIVERS_SELECT",
    "ZE_AFFINITY_MASK",
];

/// One device that a variable names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// By its number among all devices.
    Index(u32),
    /// By the first digits of its UUID, in lower case and without dashes.
    Gpu(String),
    /// A part of a GPU, by its own UUID.
    Mig(Uuid),
    /// A part of a GPU, by the GPU's UUID and the numbers of GPU instance and compute instance: the older way.
    MigOf(Uuid, u32, u32),
}

/// What a variable makes visible, in that order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visible {
    /// The devices.
    pub named: Vec<Named>,
    /// A word that names no device: what follows it is not visible.
    pub cut: Option<String>,
}

impl Visible {
    /// Reads the value of [`CUDA`]: numbers, UUIDs or their beginnings, names of MIG devices, with commas between. A word
    /// that is none of these ends the list, as it does for the driver.
    pub fn cuda(text: &str) -> Self {
        Self::list(text, named)
    }

    /// Reads the value of [`GGML_VULKAN`]: numbers with commas between.
    pub fn ggml_vulkan(text: &str) -> Self {
        Self::list(text, |word| word.parse().ok().map(Named::Index))
    }

    fn list(text: &str, read: impl Fn(&str) -> Option<Named>) -> Self {
        let mut visible = Visible { named: Vec::new(), cut: None };
        if text.trim().is_empty() {
            return visible;
        }
        for word in text.split(',').map(str::trim) {
            match read(word) {
                Some(named) => visible.named.push(named),
                None => {
                    visible.cut = Some(word.to_owned());
                    break;
                }
            }
        }
        visible
    }

    /// In words: who sees what.
    fn describe(&self, who: &str) -> String {
        let names: Vec<String> = self.named.iter().map(ToString::to_string).collect();
        let seen = match &names[..] {
            [] => format!("{who} sees no device"),
            names => format!("{who} sees at most {}, numbered anew from 0", names.join(", ")),
        };
        let cut = self.cut.as_ref().map(|word| format!("; '{word}' names none, and what follows it is hidden"));
        seen + &cut.unwrap_or_default()
    }

    /// What of a driver's list, in its order, the variable does not name: one line each.
    pub fn disobeyed(&self, listed: &[&Listed]) -> Vec<String> {
        let mut lines = Vec::new();
        if listed.len() > self.named.len() {
            lines.push(format!("names {} device(s), and {} are listed", self.named.len(), listed.len()));
        }
        // Numbers of devices that were left out can't be checked, but a UUID says who it is.
        let is_other = |named: &Named, uuid: Uuid| match named {
            Named::Index(_) | Named::MigOf(..) => false,
            Named::Mig(wanted) => *wanted != uuid,
            Named::Gpu(start) => !digits(&uuid.to_string()).starts_with(start.as_str()),
        };
        for device in listed {
            let place = device.identity.index as usize;
            if let (Some(named), Some(uuid)) = (self.named.get(place), device.identity.uuid())
                && is_other(named, uuid)
            {
                lines.push(format!("names {named}, and {} is {uuid}", device.key));
            }
        }
        lines
    }
}

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Named::Index(number) => write!(f, "device {number}"),
            Named::Gpu(start) => write!(f, "GPU {start}"),
            Named::Mig(uuid) => write!(f, "MIG device {uuid}"),
            Named::MigOf(uuid, gpu, compute) => write!(f, "MIG device {gpu}/{compute} of GPU {uuid}"),
        }
    }
}

fn named(word: &str) -> Option<Named> {
    if word.bytes().all(|b| b.is_ascii_digit()) {
        return word.parse().ok().map(Named::Index);
    }
    if let Some(start) = word.strip_prefix("GPU-") {
        let start = digits(start);
        return (!start.is_empty() && start.bytes().all(|b| b.is_ascii_hexdigit())).then_some(Named::Gpu(start));
    }
    let mig = word.strip_prefix("MIG-")?;
    if let Some((uuid, instances)) = mig.split_once('/') {
        let (gpu, compute) = instances.split_once('/')?;
        return Some(Named::MigOf(uuid.parse().ok()?, gpu.parse().ok()?, compute.parse().ok()?));
    }
    // The UUID of the whole GPU would be no part of it.
    if mig.starts_with("GPU-") { None } else { mig.parse().ok().map(Named::Mig) }
}

fn digits(uuid: &str) -> String {
    uuid.chars().filter(|c| *c != '-').map(|c| c.to_ascii_lowercase()).collect()
}

/// Every variable that is set, with what it does where that is known: one line each.
pub fn describe(environment: &BTreeMap<String, String>) -> Vec<String> {
    let set = VARIABLES.iter().filter_map(|name| Some((*name, environment.get(*name)?)));
    let line = |(name, value): (&str, &String)| {
        let value = value.escape_debug().to_string();
        match name {
            CUDA => format!("{name}={value}: {}", Visible::cuda(&value).describe("NVIDIA's driver")),
            GGML_VULKAN => {
                format!("{name}={value}: {}", Visible::ggml_vulkan(&value).describe("ggml's Vulkan backend"))
            }
            _ => format!("{name}={value}"),
        }
    };
    set.map(line).collect()
}

/// Where drivers list what these variables hide: one line each.
pub fn disobeyed(environment: &BTreeMap<String, String>, devices: &[Listed]) -> Vec<String> {
    let of = |is_it: &dyn Fn(&str) -> bool| -> Vec<&Listed> {
        // The forms of a device are one device of its driver.
        let mut listed: Vec<&Listed> = devices.iter().filter(|d| is_it(&d.identity.driver)).collect();
        listed.dedup_by_key(|d| d.place());
        listed
    };
    let mut lines = Vec::new();
    if let Some(value) = environment.get(CUDA) {
        let listed = of(&|driver| driver == "cuda");
        lines.extend(Visible::cuda(value).disobeyed(&listed).iter().map(|why| format!("{CUDA} {why}")));
    }
    if let Some(value) = environment.get(GGML_VULKAN) {
        let mut builds: Vec<&str> = devices.iter().map(|d| d.identity.driver.as_str()).collect();
        builds.retain(|driver| driver.starts_with("ggml-") && driver.ends_with("-vulkan"));
        builds.dedup();
        for build in builds {
            let listed = of(&|driver| driver == build);
            let why = Visible::ggml_vulkan(value).disobeyed(&listed);
            lines.extend(why.iter().map(|why| format!("{GGML_VULKAN} {why}")));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Claims, Kind};

    const UUID: &str = "8932f937-d72c-4106-c12f-20bd9faed9f6";

    #[test]
    fn cuda_names_devices_in_four_ways() {
        let uuid: Uuid = UUID.parse().unwrap();
        let named = |text: &str| Visible::cuda(text).named;
        assert_eq!(named("2,1"), [Named::Index(2), Named::Index(1)]);
        assert_eq!(named(" 0 , 3"), [Named::Index(0), Named::Index(3)]);
        assert_eq!(named("GPU-8932F937-d7,1"), [Named::Gpu("8932f937d7".into()), Named::Index(1)]);
        assert_eq!(named(&format!("MIG-{UUID}")), [Named::Mig(uuid)]);
        assert_eq!(named(&format!("MIG-GPU-{UUID}/1/0")), [Named::MigOf(uuid, 1, 0)]);
        assert_eq!(Visible::cuda(""), Visible { named: vec![], cut: None });
    }

    #[test]
    fn a_word_that_names_no_device_ends_the_list() {
        for (text, seen, cut) in [
            ("0,2,-1,1", 2, "-1"),
            ("none", 0, "none"),
            ("NoDevFiles", 0, "NoDevFiles"),
            ("1,,2", 1, ""),
            ("GPU-,0", 0, "GPU-"),
            ("GPU-xyz", 0, "GPU-xyz"),
            ("MIG-1", 0, "MIG-1"),
            ("0,MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", 1, "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"),
            ("MIG-8932f937-d72c-4106-c12f-20bd9faed9f6/1", 0, "MIG-8932f937-d72c-4106-c12f-20bd9faed9f6/1"),
            ("99999999999", 0, "99999999999"),
        ] {
            let visible = Visible::cuda(text);
            assert_eq!((visible.named.len(), visible.cut.as_deref()), (seen, Some(cut)), "{text}");
        }
    }

    #[test]
    fn set_variables_are_described() {
        let set =
            |pairs: &[(&str, &str)]| describe(&pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        assert_eq!(set(&[("PATH", "/bin")]), [""; 0]);
        assert_eq!(
            set(&[("CUDA_VISIBLE_DEVICES", "2,1,x"), ("GGML_VK_VISIBLE_DEVICES", "0"), ("RUSTICL_ENABLE", "llvmpipe")]),
            [
                "CUDA_VISIBLE_DEVICES=2,1,x: NVIDIA's driver sees at most device 2, device 1, numbered anew from 0; \
                 'x' names none, and what follows it is hidden",
                "GGML_VK_VISIBLE_DEVICES=0: ggml's Vulkan backend sees at most device 0, numbered anew from 0",
                "RUSTICL_ENABLE=llvmpipe"
            ]
        );
        assert_eq!(set(&[("CUDA_VISIBLE_DEVICES", "")]), ["CUDA_VISIBLE_DEVICES=: NVIDIA's driver sees no device"]);
    }

    #[test]
    fn a_driver_that_does_not_obey_is_noticed() {
        let device = |index| Listed {
            key: format!("cuda-{index}"),
            name: String::new(),
            driver: String::new(),
            identity: Claims { uuid: Some(UUID.to_owned()), ..Claims::new("cuda", index, Kind::Discrete) },
            properties: BTreeMap::new(),
        };
        let says = |value: &str, count| {
            let environment = BTreeMap::from([(CUDA.to_owned(), value.to_owned())]);
            disobeyed(&environment, &(0..count).map(device).collect::<Vec<_>>()).join("; ")
        };
        assert_eq!(says("0", 1), "");
        assert_eq!(says("GPU-8932", 1), "");
        assert_eq!(says("0", 2), "CUDA_VISIBLE_DEVICES names 1 device(s), and 2 are listed");
        assert!(says("GPU-8933", 1).contains("names GPU 8933, and cuda-0 is 8932f937"));
        assert!(says(&format!("MIG-{}", UUID.replace('8', "9")), 1).contains("names MIG device 9932f937"));
    }
}
