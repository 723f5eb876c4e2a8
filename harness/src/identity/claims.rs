//! What a driver says a device is.

use serde::{Deserialize, Serialize};

use super::{PciId, Uuid};

/// What a driver says a device is, in its own words: nothing of this is believed before it was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// Who lists it: `cuda`, one OpenCL platform, one registry entry of one ggml build.
    pub driver: String,
    /// Its place in that driver's list.
    pub index: u32,
    /// Its PCI bus id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// Its UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The locally unique id by which Windows knows the adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub luid: Option<String>,
    /// What kind of device it is.
    #[serde(default)]
    pub kind: Kind,
    /// Its memory.
    #[serde(default)]
    pub memory: MemoryClaim,
}

impl Claims {
    /// A device about which its driver says nothing yet.
    pub fn new(driver: impl Into<String>, index: usize, kind: Kind) -> Self {
        Claims { driver: driver.into(), index: u32::try_from(index).unwrap_or(u32::MAX), kind, ..Claims::default() }
    }

    /// The bus id, if there is one that can be meant.
    pub fn pci_id(&self) -> Option<PciId> {
        self.pci.as_deref()?.parse().ok().filter(|id: &PciId| !id.is_nowhere())
    }

    /// The UUID, if there is one that can be meant.
    pub fn uuid(&self) -> Option<Uuid> {
        self.uuid.as_deref()?.parse().ok().filter(|id: &Uuid| !id.is_nil())
    }
}

/// What kind of device a driver says it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the machine's memory.
    Integrated,
    /// A part of a GPU, or one that is elsewhere.
    Virtual,
    /// The machine's processor.
    Cpu,
    /// The driver doesn't say.
    #[default]
    Unknown,
}

impl Kind {
    /// The kind of a GPU with this name, of which the driver says whether it shares the machine's memory. NVIDIA writes
    /// the profile of a part behind the name of the GPU: `NVIDIA A100-SXM4-40GB MIG 3g.20gb`.
    pub fn of_gpu(name: &str, is_integrated: bool) -> Self {
        match (name.split(' ').any(|word| word == "MIG"), is_integrated) {
            (true, _) => Kind::Virtual,
            (false, true) => Kind::Integrated,
            (false, false) => Kind::Discrete,
        }
    }

    /// True for a part of a GPU, which is at the place of the whole and is not the same.
    pub fn is_part(self) -> bool {
        self == Kind::Virtual
    }

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Discrete => "discrete",
            Kind::Integrated => "integrated",
            Kind::Virtual => "virtual",
            Kind::Cpu => "cpu",
            Kind::Unknown => "unknown",
        }
    }
}

/// Memory in bytes, as a driver tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryClaim {
    /// Free when it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<u64>,
    /// All there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}

impl MemoryClaim {
    /// What may be believed: more free than there is means that the two numbers speak of different memories, and then
    /// the free one is not known.
    #[must_use]
    pub fn believed(self) -> Self {
        let total = self.total.filter(|total| *total > 0);
        let free = self.free.filter(|free| total.is_some_and(|total| *free <= total));
        MemoryClaim { free, total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_never_more_than_there_is() {
        let believed = |free, total| {
            let MemoryClaim { free, total } = MemoryClaim { free, total }.believed();
            (free, total)
        };
        assert_eq!(believed(Some(3), Some(4)), (Some(3), Some(4)));
        assert_eq!(believed(Some(4), Some(4)), (Some(4), Some(4)));
        assert_eq!(believed(Some(58), Some(16)), (None, Some(16)));
        assert_eq!(believed(Some(58), None), (None, None));
        assert_eq!(believed(Some(0), Some(0)), (None, None));
    }

    #[test]
    fn parts_of_gpus_are_known_by_name() {
        assert_eq!(Kind::of_gpu("NVIDIA H200", false), Kind::Discrete);
        assert_eq!(Kind::of_gpu("NVIDIA GB10", true), Kind::Integrated);
        assert_eq!(Kind::of_gpu("NVIDIA A100-SXM4-40GB MIG 3g.20gb", false), Kind::Virtual);
        assert_eq!(Kind::of_gpu("MIGHTY 3", false), Kind::Discrete);
    }

    #[test]
    fn placeholders_are_no_ids() {
        let zeros = "00000000-0000-0000-0000-000000000000";
        let claims = |pci: &str, uuid: &str| Claims {
            pci: Some(pci.to_owned()),
            uuid: Some(uuid.to_owned()),
            ..Claims::new("cuda", 0, Kind::Discrete)
        };
        let zero = claims("0000:00:00.0", zeros);
        assert_eq!((zero.pci_id(), zero.uuid()), (None, None));
        let nonsense = claims("", "none");
        assert_eq!((nonsense.pci_id(), nonsense.uuid()), (None, None));
        assert!(claims("0000:00:02.0", zeros).pci_id().is_some());
    }
}
