//! What a run may demand of its devices, so that it doesn't start on others.

use std::fmt;
use std::str::FromStr;

use glob::{MatchOptions, Pattern};

use super::{Listed, PciId, Uuid};

/// What a device must be: `name=*H200*,pci=0000:3b:00.0,driver=CUDA*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// The device's own name.
    Name(Pattern),
    /// Name and version of its driver.
    Driver(Pattern),
    /// Its bus id, which it must have.
    Pci(PciId),
    /// Its UUID, which it must have.
    Uuid(Uuid),
}

impl Requirement {
    /// What of it a device doesn't meet, as "it is that and not this"; `None` where it meets all.
    pub fn unmet(&self, device: &Listed) -> Option<String> {
        self.parts.iter().find_map(|part| part.unmet(device))
    }
}

impl Part {
    fn unmet(&self, device: &Listed) -> Option<String> {
        let claims = &device.identity;
        let (is_met, what, has, wanted) = match self {
            Part::Name(glob) => (matches(glob, &device.name), "name", Some(device.name.clone()), glob.to_string()),
            Part::Driver(glob) => {
                (matches(glob, &device.driver), "driver", Some(device.driver.clone()), glob.to_string())
            }
            Part::Pci(id) => {
                let has = claims.pci_id();
                (has == Some(*id), "bus id", has.map(|id| id.to_string()), id.to_string())
            }
            Part::Uuid(id) => {
                let has = claims.uuid();
                (has == Some(*id), "UUID", has.map(|id| id.to_string()), id.to_string())
            }
        };
        let has = has.map_or_else(|| "not told".to_owned(), |has| format!("'{has}'"));
        (!is_met).then(|| format!("its {what} is {has} and not '{wanted}'"))
    }
}

/// Names are written in any case.
fn matches(glob: &Pattern, text: &str) -> bool {
    glob.matches_with(text, MatchOptions { case_sensitive: false, ..MatchOptions::new() })
}

impl FromStr for Requirement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(|part| part.trim().parse()).collect::<Result<_, _>>()?;
        Ok(Requirement { text: text.to_owned(), parts })
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "write name=GLOB, pci=ID, uuid=ID or driver=GLOB, with commas between";
        let (key, value) = text.split_once('=').ok_or_else(|| format!("'{text}' has no '='; {form}"))?;
        if value.is_empty() {
            return Err(format!("'{key}' has no value; {form}"));
        }
        let glob = || Pattern::new(value).map_err(|e| format!("{key}: '{value}' is no glob: {}", e.msg));
        match key {
            "name" => glob().map(Part::Name),
            "driver" => glob().map(Part::Driver),
            "pci" => value.parse().map(Part::Pci).map_err(|e| format!("pci: {e}")),
            "uuid" => value.parse().map(Part::Uuid).map_err(|e| format!("uuid: {e}")),
            _ => Err(format!("'{key}' is nothing that can be required; {form}")),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Claims, Kind};

    fn h200(pci: Option<&str>) -> Listed {
        let identity = Claims { pci: pci.map(str::to_owned), ..Claims::new("cuda", 0, Kind::Discrete) };
        let (key, name, driver) = ("cuda-0".into(), "NVIDIA H200".into(), "CUDA 13.0, NVRTC 13.0".into());
        Listed { key, name, driver, identity, properties: Default::default() }
    }

    #[test]
    fn all_parts_must_be_met() {
        let unmet = |text: &str, pci| text.parse::<Requirement>().unwrap().unmet(&h200(pci));
        let at = Some("00000000:3B:00.0");
        assert_eq!(unmet("name=nvidia h200", at), None);
        assert_eq!(unmet("name=*H200,pci=0000:3b:00.0,driver=CUDA 13.0*", at), None);
        assert_eq!(unmet("name=*H200,driver=CUDA 12*", at).unwrap().matches("driver").count(), 1);
        assert_eq!(unmet("pci=3b:00.1", at).unwrap(), "its bus id is '0000:3b:00.0' and not '0000:3b:00.1'");
        assert_eq!(unmet("pci=3b:00.0", None).unwrap(), "its bus id is not told and not '0000:3b:00.0'");
        assert_eq!(unmet("name=NVIDIA H100", at).unwrap(), "its name is 'NVIDIA H200' and not 'NVIDIA H100'");
        assert!(unmet("uuid=8932f937-d72c-4106-c12f-20bd9faed9f6", at).unwrap().starts_with("its UUID is not told"));
    }

    #[test]
    fn mistakes_are_named() {
        let why = |text: &str| text.parse::<Requirement>().unwrap_err();
        assert!(why("").contains("has no '='"));
        assert!(why("name=").contains("'name' has no value"));
        assert!(why("name=a,bus=1").contains("'bus' is nothing that can be required"));
        assert!(why("pci=3b:00").contains("'3b:00' is no PCI bus id"));
        assert!(why("uuid=1").contains("is no UUID"));
        assert!(why("name=[").contains("is no glob"));
    }
}
