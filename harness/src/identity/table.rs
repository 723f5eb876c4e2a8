//! What drivers said, as a file.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Claims;
use crate::backend::DeviceInfo;
use crate::discover::Missing;

/// Number of the layout of recorded tables; a reader refuses others.
pub const SCHEMA: u32 = 1;

/// What drivers said of their devices, on this machine or on another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What the table shows, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Variables that change what drivers list.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Every device, in the order of drivers and of their lists.
    pub devices: Vec<Listed>,
    /// Who has no devices, and why.
    #[serde(default)]
    pub missing: Vec<Missing>,
}

/// A device in a driver's list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    /// Its key.
    pub key: String,
    /// Its own name for itself.
    pub name: String,
    /// Name and version of the driver.
    pub driver: String,
    /// What the driver says it is.
    pub identity: Claims,
    /// What else it says.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, String>,
}

impl From<&DeviceInfo> for Listed {
    fn from(info: &DeviceInfo) -> Self {
        let DeviceInfo { key, backend: _, name, driver, identity, properties, capabilities: _ } = info.clone();
        Listed { key, name, driver, identity, properties }
    }
}

impl Listed {
    /// The key without what stands for a form of the device, and that: `cuda-0` and nothing, `opencl-intel-0` and `+f16`.
    pub fn stem_and_form(&self) -> (&str, &str) {
        self.key.split_at(self.key.find('+').unwrap_or(self.key.len()))
    }

    /// What is the same for all forms of one device, and for no other.
    pub(super) fn place(&self) -> (&str, u32, &str) {
        (&self.identity.driver, self.identity.index, self.stem_and_form().0)
    }
}

impl Table {
    /// Reads a recorded table. The error is one line that names the file.
    pub fn read(path: &Path) -> Result<Self, String> {
        let in_file = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let text = std::fs::read_to_string(path).map_err(|e| in_file(&e))?;
        Self::parse(&text).map_err(|why| in_file(&why))
    }

    fn parse(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct AnyTable {
            schema: u32,
        }
        let said = |e: serde_json::Error| format!("is no table of devices that --record wrote: {e}");
        let AnyTable { schema } = serde_json::from_str(text).map_err(said)?;
        if schema != SCHEMA {
            return Err(format!("has schema {schema}, this conform reads {SCHEMA}: record it anew"));
        }
        let table: Table = serde_json::from_str(text).map_err(said)?;
        let mut keys = std::collections::BTreeSet::new();
        match table.devices.iter().find(|d| !keys.insert(&d.key)) {
            Some(twice) => Err(format!("lists two devices with the key {}", twice.key)),
            None => Ok(table),
        }
    }

    /// Writes the table. The error is one line that names the file.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let in_file = |why: &dyn std::fmt::Display| format!("cannot write {}: {why}", path.display());
        let text = serde_json::to_string_pretty(self).map_err(|e| in_file(&e))?;
        std::fs::write(path, text + "\n").map_err(|e| in_file(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_one_line() {
        let why = |text: &str| Table::parse(text).unwrap_err();
        assert!(why("{").contains("is no table of devices"));
        assert!(why(r#"{"found":[]}"#).contains("missing field `schema`"));
        assert!(why(r#"{"schema":9,"new":0}"#).contains("has schema 9, this conform reads 1"));
        assert!(why(r#"{"schema":1,"devices":[],"more":0}"#).contains("unknown field `more`"));
        let device = r#"{"key":"a","name":"","driver":"","identity":{"driver":"a","index":0}}"#;
        assert!(
            why(&format!(r#"{{"schema":1,"devices":[{device},{device}]}}"#)).contains("two devices with the key a")
        );
        assert!(!why("{\n\n").contains('\n'));
        let missing = Table::read(Path::new("/nonexistent/table.json")).unwrap_err();
        assert!(missing.starts_with("/nonexistent/table.json: "), "{missing}");
    }
}
