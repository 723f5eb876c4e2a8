//! What is odd about a table: nobody is lost because of it, but somebody should know.

use std::collections::BTreeSet;

use super::{Kind, Listed, PciId, Uuid};

/// A device with its ids read.
struct Read<'a> {
    device: &'a Listed,
    bus: Option<PciId>,
    uuid: Option<Uuid>,
}

/// How two devices are odd beside each other.
#[derive(PartialEq)]
enum Pair {
    /// One driver has both at one place.
    ListedTwice,
    /// One driver has both at one place, and says that they are different.
    DifferentAtOnePlace,
    /// One driver gives one UUID to both.
    SharedUuid,
    /// One driver has two ways to one adapter of Windows.
    SharedLuid,
    /// Drivers agree on the place and not on the UUID.
    UuidsDiffer,
    /// Drivers do not agree whether the memory is the GPU's own.
    KindsDiffer,
    /// Drivers agree on UUID or LUID, and one says no place.
    MaybeOne(&'static str),
}

/// Every oddity in one line, for devices in their canonical order.
pub(super) fn doubts(devices: &[&Listed]) -> Vec<String> {
    let mut firsts: Vec<Read<'_>> = Vec::new();
    for device in devices {
        // Forms of a device say the same.
        if firsts.last().is_none_or(|last| last.device.place() != device.place()) {
            let claims = &device.identity;
            firsts.push(Read { device, bus: claims.pci_id(), uuid: claims.uuid() });
        }
    }
    let mut lines: Vec<String> = firsts.iter().flat_map(|r| of_device(r.device)).collect();
    for (i, a) in firsts.iter().enumerate() {
        lines.extend(firsts[i + 1..].iter().filter_map(|b| Some(line(&pair(a, b)?, a, b))));
    }
    lines.extend(firsts.iter().filter_map(|r| unclear(r, &firsts)));
    lines
}

/// What one device says that can't be.
fn of_device(device: &Listed) -> Vec<String> {
    let (key, claims) = (&device.key, &device.identity);
    let pci = claims.pci.as_deref().map(str::parse::<PciId>);
    let uuid = claims.uuid.as_deref().map(str::parse::<Uuid>);
    let mut lines = Vec::new();
    if let Some(Err(why)) = pci {
        lines.push(format!("{key}: its driver's bus id {why}"));
    }
    if let Some(Err(why)) = uuid {
        lines.push(format!("{key}: its driver's UUID {why}"));
    }
    if let (Some(free), Some(total)) = (claims.memory.free, claims.memory.total)
        && free > total
    {
        lines.push(format!("{key}: its driver says {free} bytes are free of {total}: how many are is not known"));
    }
    lines
}

fn pair(a: &Read<'_>, b: &Read<'_>) -> Option<Pair> {
    let (one, other) = (&a.device.identity, &b.device.identity);
    let same_bus = a.bus.is_some() && a.bus == b.bus;
    let same_uuid = a.uuid.is_some() && a.uuid == b.uuid;
    let same_luid = one.luid.is_some() && one.luid == other.luid;
    let different_uuids = a.uuid.is_some() && b.uuid.is_some() && !same_uuid;
    let (is_part, other_is_part) = (one.kind.is_part(), other.kind.is_part());
    if one.driver == other.driver {
        return match (same_bus, same_uuid, same_luid) {
            // Parts of a GPU are at its place, and that is all right.
            (true, false, _) if is_part && other_is_part => None,
            (true, false, _) if different_uuids => Some(Pair::DifferentAtOnePlace),
            (true, ..) => Some(Pair::ListedTwice),
            (false, true, _) => Some(Pair::SharedUuid),
            (false, false, true) => Some(Pair::SharedLuid),
            (false, false, false) => None,
        };
    }
    let kinds = BTreeSet::from([one.kind, other.kind]);
    match (same_bus, same_uuid) {
        (true, _) if is_part || other_is_part => None,
        (true, false) if different_uuids => Some(Pair::UuidsDiffer),
        (true, _) if kinds.is_superset(&BTreeSet::from([Kind::Integrated, Kind::Discrete])) => Some(Pair::KindsDiffer),
        (true, _) => None,
        (false, true) if a.bus.is_none() || b.bus.is_none() => Some(Pair::MaybeOne("UUID")),
        (false, _) if same_luid && !different_uuids => Some(Pair::MaybeOne("LUID")),
        _ => None,
    }
}

fn line(pair: &Pair, a: &Read<'_>, b: &Read<'_>) -> String {
    let (one, other, driver) = (&a.device.key, &b.device.key, &a.device.identity.driver);
    let bus = a.bus.or(b.bus).map(|bus| bus.to_string()).unwrap_or_default();
    match pair {
        Pair::ListedTwice => format!("{driver} lists one GPU twice: {one} and {other} are both at {bus}; both stay"),
        Pair::DifferentAtOnePlace => {
            format!("{driver} lists two GPUs at {bus}, {one} and {other}, with different UUIDs; both stay")
        }
        Pair::SharedUuid => format!("{driver} gives one UUID to {one} and {other}; both stay"),
        Pair::SharedLuid => {
            format!("{driver} lists one adapter twice: {one} and {other} have one LUID; both stay")
        }
        Pair::UuidsDiffer => format!("{one} and {other} are both at {bus} and have different UUIDs: they stay apart"),
        Pair::KindsDiffer => {
            let (kind, other_kind) = (a.device.identity.kind.word(), b.device.identity.kind.word());
            format!("the GPU at {bus} is {kind} to {one} and {other_kind} to {other}")
        }
        Pair::MaybeOne(id) => {
            format!("{one} and {other} have one {id} and may be one GPU; without bus ids they stay apart")
        }
    }
}

/// A device that could be any of several that another driver has in its place.
fn unclear(read: &Read<'_>, all: &[Read<'_>]) -> Option<String> {
    let bus = read.bus?;
    let mine = &read.device.identity.driver;
    let could_be = |other: &&Read<'_>| {
        let told_apart = read.uuid.is_some() && other.uuid.is_some() && read.uuid != other.uuid;
        let same_kind = other.device.identity.kind.is_part() == read.device.identity.kind.is_part();
        other.device.identity.driver != *mine && other.bus == read.bus && same_kind && !told_apart
    };
    let candidates: Vec<&Read<'_>> = all.iter().filter(could_be).collect();
    let drivers: BTreeSet<&str> = candidates.iter().map(|c| c.device.identity.driver.as_str()).collect();
    if candidates.len() == drivers.len() {
        return None;
    }
    let keys: Vec<&str> = candidates.iter().map(|c| c.device.key.as_str()).collect();
    Some(format!("{} at {bus} may be any of {}: it stays apart", read.device.key, keys.join(", ")))
}
