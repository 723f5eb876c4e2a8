//! What must hold for every table, whatever drivers say.
//!
//! Here stands once more, in other words than in the rules, who is one GPU: a rule that is exchanged for a wrong one
//! must be noticed by something that doesn't follow it.

use std::collections::{BTreeMap, BTreeSet};

use glob::Pattern;

use super::{Kind, Listed, PciId, Physical, Rules, Uuid};

/// A device with its ids read, and which physical device it went to.
struct Placed<'a> {
    device: &'a Listed,
    bus: Option<PciId>,
    uuid: Option<Uuid>,
    physical: usize,
}

/// What is wrong with `physical` as the answer to `devices`, in one line.
pub fn check(devices: &[Listed], physical: &[Physical]) -> Result<(), String> {
    let placed = placed(devices, physical)?;
    for (i, a) in placed.iter().enumerate() {
        for b in &placed[i + 1..] {
            pair(a, b)?;
        }
    }
    together(&placed)?;
    physical.iter().try_for_each(|p| belief(devices, p))
}

/// Nobody is lost, and nobody is there twice.
fn placed<'a>(devices: &'a [Listed], physical: &[Physical]) -> Result<Vec<Placed<'a>>, String> {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, one) in physical.iter().enumerate() {
        for member in &one.devices {
            if places.insert(&member.key, i).is_some() {
                return Err(format!("{} is in two GPUs", member.key));
            }
        }
    }
    if places.len() > devices.len() {
        return Err(format!("{} devices became {}", devices.len(), places.len()));
    }
    let place = |device: &'a Listed| {
        let physical = *places.get(&*device.key).ok_or_else(|| format!("{} is lost", device.key))?;
        Ok(Placed { device, bus: device.identity.pci_id(), uuid: device.identity.uuid(), physical })
    };
    devices.iter().map(place).collect()
}

/// Who may not be together.
fn pair(a: &Placed<'_>, b: &Placed<'_>) -> Result<(), String> {
    let (one, other) = (a.device, b.device);
    let are_forms = one.place() == other.place();
    match a.physical == b.physical {
        false if are_forms => Err(format!("{} and {} are forms of one device, and apart", one.key, other.key)),
        true if are_forms => Ok(()),
        true if one.identity.driver == other.identity.driver => {
            Err(format!("{} and {} are of one driver, and together", one.key, other.key))
        }
        true if a.bus.is_none() || a.bus != b.bus => {
            Err(format!("{} and {} have no bus id in common, and are together", one.key, other.key))
        }
        true if one.identity.kind.is_part() != other.identity.kind.is_part() => {
            Err(format!("{} and {} are a part and a whole, and together", one.key, other.key))
        }
        true if a.uuid.is_some() && b.uuid.is_some() && a.uuid != b.uuid => {
            Err(format!("{} and {} have different UUIDs, and are together", one.key, other.key))
        }
        _ => Ok(()),
    }
}

/// Who must be together: all with one bus id and one UUID, and all with one bus id if no two UUIDs are there, as long as
/// each is of another driver.
fn together(placed: &[Placed<'_>]) -> Result<(), String> {
    let mut by_bus: BTreeMap<(PciId, bool), Vec<&Placed<'_>>> = BTreeMap::new();
    let mut by_both: BTreeMap<(PciId, bool, Uuid), Vec<&Placed<'_>>> = BTreeMap::new();
    for p in placed {
        let Some(bus) = p.bus else { continue };
        let is_part = p.device.identity.kind.is_part();
        by_bus.entry((bus, is_part)).or_default().push(p);
        if let Some(uuid) = p.uuid {
            by_both.entry((bus, is_part, uuid)).or_default().push(p);
        }
    }
    let uuids = |all: &[&Placed<'_>]| all.iter().filter_map(|p| p.uuid).collect::<BTreeSet<_>>().len();
    let clear = by_bus.into_values().filter(|all| uuids(all) <= 1).chain(by_both.into_values());
    for all in clear {
        let places: BTreeSet<_> = all.iter().map(|p| p.device.place()).collect();
        let drivers: BTreeSet<_> = all.iter().map(|p| &p.device.identity.driver).collect();
        if let (true, Some(apart)) = (places.len() == drivers.len(), all.iter().find(|p| p.physical != all[0].physical))
        {
            return Err(format!("{} and {} have the same ids, and are apart", all[0].device.key, apart.device.key));
        }
    }
    Ok(())
}

/// What is said of a GPU is no more than what its drivers say.
fn belief(devices: &[Listed], physical: &Physical) -> Result<(), String> {
    let first = physical.devices.first().map_or("a GPU without devices", |d| d.key.as_str());
    let members: Vec<&Listed> = devices.iter().filter(|d| physical.devices.iter().any(|m| m.key == d.key)).collect();
    // Who has more free than there is knows nothing of it.
    let told = members.iter().map(|d| d.identity.memory);
    let told = told.filter_map(|m| m.free.filter(|free| m.total.is_some_and(|total| total > 0 && *free <= total)));
    let (free, least) = (physical.free_memory, told.min());
    if free > least || free.is_some() && free > physical.total_memory {
        return Err(format!("{first} has {free:?} bytes free of {:?}", physical.total_memory));
    }
    for device in members {
        let (kind, said) = (physical.kind, device.identity.kind);
        if kind != Kind::Unknown && said != Kind::Unknown && kind != said {
            return Err(format!("{} is {} and called {}", device.key, said.word(), kind.word()));
        }
        let total = device.identity.memory.total.filter(|total| *total > 0);
        if total.is_some_and(|total| physical.total_memory.is_none_or(|all| all > total)) {
            return Err(format!("{} is said to have more memory than its driver grants it", device.key));
        }
    }
    Ok(())
}

/// What is wrong with the names of devices, in one line: a key names one, and an alias those that a driver has at one
/// place.
pub fn names(devices: &[Listed], rules: &Rules) -> Result<(), String> {
    let aliases: Vec<Option<String>> = devices.iter().map(rules.alias).collect();
    let buses: Vec<Option<PciId>> = devices.iter().map(|d| d.identity.pci_id()).collect();
    // True if a glob names what it should of all devices, and nothing else.
    let names_just = |glob: &str, should: &dyn Fn(usize) -> bool| -> Result<bool, String> {
        let glob = Pattern::new(glob).map_err(|e| format!("'{glob}' is no glob: {}", e.msg))?;
        let mut both = devices.iter().zip(&aliases).enumerate();
        Ok(both.all(|(i, (d, alias))| (rules.names)(&glob, &d.key, alias.as_deref()) == should(i)))
    };
    for (i, device) in devices.iter().enumerate() {
        let key = &device.key;
        if !names_just(key, &|other| other == i)? {
            return Err(format!("{key} names other devices as well, or not itself"));
        }
        let Some(bus) = buses[i] else { continue };
        let alias = aliases[i].as_ref().ok_or_else(|| format!("{key} has no alias"))?;
        if !alias.contains(&bus.path_safe()) {
            return Err(format!("{alias}, the alias of {key}, does not say {bus}"));
        }
        let is_there = |other: usize| {
            let alike = |d: &Listed| (d.identity.driver.clone(), d.stem_and_form().1.to_owned());
            buses[other] == Some(bus) && alike(&devices[other]) == alike(device)
        };
        if !names_just(alias, &is_there)? {
            return Err(format!("{alias} names other devices than those at {bus}"));
        }
    }
    Ok(())
}
