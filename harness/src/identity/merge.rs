//! The rules by which devices are told apart and brought together.
//!
//! Two devices are one GPU if different drivers list them, both have a bus id and it is the same, and their UUIDs are
//! equal where both have one. A part of a GPU is not the whole, though both are at one place. What one driver lists are several GPUs whatever it says of them. Where it isn't clear
//! which of several devices is meant they all stay apart: testing a GPU twice is harmless, losing one is not.

use std::collections::{BTreeMap, BTreeSet};

use glob::Pattern;
use serde::Serialize;

use super::doubt::doubts;
use super::{Claims, Kind, Listed, MemoryClaim};

/// The rules, each of which can be exchanged for another.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// By what text devices with the same bus id are known to have it; `None` where a device has none.
    pub bus: fn(&Listed) -> Option<String>,
    /// The same for UUIDs.
    pub uuid: fn(&Listed) -> Option<String>,
    /// Which entries are one GPU, as groups of their places. Every place is in one group.
    pub group: fn(&[Entry]) -> Vec<Vec<usize>>,
    /// What is believed about memory.
    pub memory: fn(&Claims) -> MemoryClaim,
    /// A device's name by its bus id.
    pub alias: fn(&Listed) -> Option<String>,
    /// Whether a glob names the device with this key and alias.
    pub names: fn(&Pattern, &str, Option<&str>) -> bool,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            bus: |device| device.identity.pci_id().map(|id| id.to_string()),
            uuid: |device| device.identity.uuid().map(|id| id.to_string()),
            group,
            memory: |claims| claims.memory.believed(),
            alias,
            names,
        }
    }
}

/// What a driver lists in one place: a device, in all forms it is there for us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whose list it is.
    pub driver: String,
    /// The place in it.
    pub index: u32,
    /// The device's name for itself.
    pub name: String,
    /// Its kind, as the driver says.
    pub kind: Kind,
    /// The bus id as [`Rules::bus`] reads it.
    pub bus: Option<String>,
    /// The UUID as [`Rules::uuid`] reads it.
    pub uuid: Option<String>,
}

/// A GPU or another device, with all that reach it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Physical {
    /// Its PCI bus id, where a driver tells it.
    pub pci: Option<String>,
    /// Its UUID, where a driver tells it.
    pub uuid: Option<String>,
    /// What kind of device it is; unknown where drivers disagree.
    pub kind: Kind,
    /// Its name, in the words of the driver that comes first by name.
    pub name: String,
    /// Bytes of memory that every driver grants it.
    pub total_memory: Option<u64>,
    /// Free bytes of it, as far as they are known.
    pub free_memory: Option<u64>,
    /// Who reaches it, ordered by driver and place.
    pub devices: Vec<Member>,
}

/// A device that reaches a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Member {
    /// Its key.
    pub key: String,
    /// The name by bus id under which it is found whatever its number is.
    pub alias: Option<String>,
}

/// What a table comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resolved {
    /// All devices, each of which reaches one GPU; ordered, whatever the order of the table.
    pub physical: Vec<Physical>,
    /// What is odd: one line each.
    pub warnings: Vec<String>,
}

impl Resolved {
    /// The device that a key reaches.
    pub fn of(&self, key: &str) -> Option<&Physical> {
        self.physical.iter().find(|p| p.devices.iter().any(|d| d.key == key))
    }

    /// Which of these devices reach a GPU that another of them reaches as well: the first of its drivers by name stands
    /// for them. Devices of the processor differ in what computes, and none of them repeats another.
    pub fn repeated(&self, keys: &[&str]) -> Vec<Repeated> {
        let mut repeated = Vec::new();
        for gpu in self.physical.iter().filter(|p| p.kind != Kind::Cpu) {
            let mut among = gpu.devices.iter().filter(|d| keys.contains(&d.key.as_str()));
            let Some(first) = among.next() else { continue };
            repeated.extend(among.map(|d| Repeated { device: d.key.clone(), stands_for_it: first.key.clone() }));
        }
        repeated
    }
}

/// A device that reaches the same GPU as another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Repeated {
    /// Its key.
    pub device: String,
    /// The other's.
    pub stands_for_it: String,
}

/// Tells the devices of a table apart, and says what is odd about them.
pub fn resolve(devices: &[Listed], rules: &Rules) -> Resolved {
    Resolved { physical: tell_apart(devices, rules), warnings: doubts(&ordered(devices)) }
}

/// The devices in a canonical order, so that that of the drivers means nothing.
fn ordered(devices: &[Listed]) -> Vec<&Listed> {
    let mut ordered: Vec<&Listed> = devices.iter().collect();
    ordered.sort_by_key(|d| (&d.identity.driver, d.identity.index, &d.key));
    ordered
}

/// Tells the devices of a table apart.
pub fn tell_apart(devices: &[Listed], rules: &Rules) -> Vec<Physical> {
    let ordered = ordered(devices);
    let forms: Vec<&[&Listed]> = ordered.chunk_by(|a, b| a.place() == b.place()).collect();
    let entries: Vec<Entry> = forms.iter().map(|f| entry(f[0], rules)).collect();
    let groups = (rules.group)(&entries);
    let physical = |group: &Vec<usize>| {
        let mut group = group.clone();
        group.sort_unstable();
        physical(&group, &entries, &forms, rules)
    };
    let mut physical: Vec<Physical> = groups.iter().filter(|g| !g.is_empty()).map(physical).collect();
    physical.sort();
    physical
}

fn entry(device: &Listed, rules: &Rules) -> Entry {
    let claims = &device.identity;
    Entry {
        driver: claims.driver.clone(),
        index: claims.index,
        name: device.name.clone(),
        kind: claims.kind,
        bus: (rules.bus)(device),
        uuid: (rules.uuid)(device),
    }
}

/// Puts together what is said of one GPU. `group` has places in order, at least one.
fn physical(group: &[usize], entries: &[Entry], forms: &[&[&Listed]], rules: &Rules) -> Physical {
    let of = |i: &usize| &entries[*i];
    let kinds: BTreeSet<Kind> = group.iter().map(|i| of(i).kind).filter(|k| *k != Kind::Unknown).collect();
    let memory: Vec<MemoryClaim> =
        group.iter().flat_map(|i| forms[*i]).map(|device| (rules.memory)(&device.identity)).collect();
    let total = memory.iter().filter_map(|m| m.total).min();
    let free = memory.iter().filter_map(|m| m.free).min();
    let member = |device: &&Listed| Member { key: device.key.clone(), alias: (rules.alias)(device) };
    Physical {
        pci: group.iter().find_map(|i| of(i).bus.clone()),
        uuid: group.iter().find_map(|i| of(i).uuid.clone()),
        kind: if kinds.len() == 1 { kinds.into_iter().next().unwrap_or_default() } else { Kind::Unknown },
        name: of(&group[0]).name.clone(),
        total_memory: total,
        // Drivers may grant different shares of it.
        free_memory: free.map(|free| total.map_or(free, |total| free.min(total))),
        devices: group.iter().flat_map(|i| forms[*i]).map(member).collect(),
    }
}

/// Groups entries with one bus id, unless it is not clear which belong together.
fn group(entries: &[Entry]) -> Vec<Vec<usize>> {
    let mut groups = Vec::new();
    let mut by_bus: BTreeMap<(&str, bool), Vec<usize>> = BTreeMap::new();
    for (i, entry) in entries.iter().enumerate() {
        match &entry.bus {
            Some(bus) => by_bus.entry((bus, entry.kind.is_part())).or_default().push(i),
            None => groups.push(vec![i]),
        }
    }
    for at_bus in by_bus.into_values() {
        let (with, without): (Vec<usize>, Vec<usize>) = at_bus.iter().partition(|i| entries[**i].uuid.is_some());
        let mut by_uuid: BTreeMap<Option<&str>, Vec<usize>> = BTreeMap::new();
        for i in with {
            by_uuid.entry(entries[i].uuid.as_deref()).or_default().push(i);
        }
        // Who gives no UUID can mean any GPU that is there: this is clear only of one.
        if by_uuid.len() <= 1 && is_clear(entries, &at_bus) {
            groups.push(at_bus);
            continue;
        }
        groups.extend(without.into_iter().map(|i| vec![i]));
        for equal in by_uuid.into_values() {
            if is_clear(entries, &equal) {
                groups.push(equal);
            } else {
                groups.extend(equal.into_iter().map(|i| vec![i]));
            }
        }
    }
    groups
}

/// No driver lists two of these.
fn is_clear(entries: &[Entry], group: &[usize]) -> bool {
    let drivers: BTreeSet<&str> = group.iter().map(|i| entries[*i].driver.as_str()).collect();
    drivers.len() == group.len()
}

/// The key with the bus id where the number in the driver's list stands: `cuda-pci-0000-3b-00.0`.
fn alias(device: &Listed) -> Option<String> {
    let id = device.identity.pci_id()?.path_safe();
    let (stem, form) = device.stem_and_form();
    let number = format!("-{}", device.identity.index);
    Some(format!("{}-{id}{form}", stem.strip_suffix(&*number).unwrap_or(stem)))
}

/// A glob with `pci-` in it may be one of aliases. Others are not, since the digits of a bus id would match many.
fn names(glob: &Pattern, key: &str, alias: Option<&str>) -> bool {
    glob.matches(key) || glob.as_str().contains("pci-") && alias.is_some_and(|alias| glob.matches(alias))
}
