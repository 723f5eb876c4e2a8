//! Rules that tell devices apart wrongly: old mistakes of engines, and what else a careless reader of ids does.

use std::collections::BTreeMap;

use super::super::{Fault, IDENTITY, Mutant};
use crate::identity::{Entry, Kind, Listed, Rules};

/// A wrong rule in place of a right one.
const fn mutant(id: &'static str, bug: &'static str, what: &'static str, change: fn(&mut Rules)) -> Mutant {
    Mutant { id, bug, what, op: IDENTITY, fault: Fault::Identity(change) }
}

/// All of them.
pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "identity-fields-in-16-bytes",
        "D1 llama.cpp PR #22533",
        "a bus id is made of property fields, in 16 bytes",
        |r| {
            (r.bus, r.group) = (of_fields, by_bus);
        },
    ),
    mutant("identity-by-uuid", "D3 llama.cpp PR #19058", "devices are merged by UUID alone", |r| r.group = by_uuid),
    mutant("identity-by-name", "D3 llama.cpp PR #19058", "devices are merged by name", |r| r.group = by_name),
    mutant(
        "identity-by-number",
        "D8 ollama 29ab9fa7d",
        "devices are merged by their number in each driver's list",
        |r| r.group = by_index,
    ),
    mutant("identity-missing-are-equal", "D1 llama.cpp PR #22533", "devices without a bus id have the same one", |r| {
        r.bus = missing_are_equal
    }),
    mutant("identity-letter-case", "D1 llama.cpp PR #22533", "upper and lower case are different bus ids", |r| {
        r.bus = |device| device.identity.pci.clone();
    }),
    mutant(
        "identity-in-12-bytes",
        "D1 llama.cpp PR #22533",
        "a bus id loses its function in a buffer of 12 bytes",
        |r| r.bus = in_12_bytes,
    ),
    mutant("identity-narrow-domain", "D1 llama.cpp PR #22533", "a domain has 16 bits", |r| r.bus = narrow_domain),
    mutant("identity-within-a-driver", "D3 llama.cpp PR #19058", "what one driver lists is merged", |r| {
        r.group = by_bus
    }),
    mutant(
        "identity-first-candidate",
        "D3 llama.cpp PR #19058",
        "of several devices that may be meant the first one is",
        |r| {
            r.group = first_candidate;
        },
    ),
    mutant(
        "identity-uuids-unread",
        "D3 llama.cpp PR #19058",
        "two devices in one place are one, whatever their UUIDs",
        |r| r.uuid = |_| None,
    ),
    mutant("identity-part-is-whole", "D15 vLLM PR #41776", "a part of a GPU is taken for the whole", |r| {
        r.group = parts_are_wholes
    }),
    mutant("identity-never-merged", "D8 ollama 29ab9fa7d", "every driver's device is a GPU of its own", |r| {
        r.group = |entries| (0..entries.len()).map(|i| vec![i]).collect();
    }),
    mutant("identity-one-integrated", "D11 llama.cpp #26901", "only the first integrated GPU stays", |r| {
        r.group = one_integrated
    }),
    mutant("identity-no-integrated", "D12 llama.cpp PR #23868", "no integrated GPU stays beside others", |r| {
        r.group = no_integrated
    }),
    mutant("identity-memory-as-told", "D11 llama.cpp #26901", "more memory is free than there is", |r| {
        r.memory = |claims| claims.memory
    }),
    mutant("identity-first-always", "D6 whisper.cpp 5527454cd", "the first device of a driver is always named", |r| {
        r.names = and_the_first
    }),
    mutant("identity-alias-by-number", "D10 ollama db973c8fc", "a device's alias is its number", |r| {
        r.alias = |d| Some(d.key.clone())
    }),
];

fn of_fields(device: &Listed) -> Option<String> {
    let fields = device.properties.get("pci_attributes");
    let id = fields.map(|f| format!("{f}.0")).or_else(|| device.identity.pci.clone())?;
    Some(id.chars().take(15).collect())
}

fn missing_are_equal(device: &Listed) -> Option<String> {
    Some(device.identity.pci_id().map(|id| id.to_string()).unwrap_or_default())
}

fn in_12_bytes(device: &Listed) -> Option<String> {
    // The last byte ends the string.
    device.identity.pci_id().map(|id| id.to_string().chars().take(11).collect())
}

fn narrow_domain(device: &Listed) -> Option<String> {
    let id = device.identity.pci_id()?.to_string();
    let (domain, place) = id.split_once(':')?;
    Some(format!("{}:{place}", &domain[domain.len() - 4..]))
}

fn and_the_first(glob: &glob::Pattern, key: &str, alias: Option<&str>) -> bool {
    (Rules::default().names)(glob, key, alias) || key.ends_with("-0")
}

/// Groups all that have the same text; those without any stay alone.
fn by(entries: &[Entry], text: impl Fn(&Entry) -> Option<String>) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (i, entry) in entries.iter().enumerate() {
        groups.entry(text(entry).unwrap_or_else(|| format!("only {i}"))).or_default().push(i);
    }
    groups.into_values().collect()
}

fn by_bus(entries: &[Entry]) -> Vec<Vec<usize>> {
    by(entries, |e| e.bus.clone())
}

fn by_uuid(entries: &[Entry]) -> Vec<Vec<usize>> {
    by(entries, |e| e.uuid.clone())
}

fn by_name(entries: &[Entry]) -> Vec<Vec<usize>> {
    by(entries, |e| Some(e.name.clone()))
}

fn by_index(entries: &[Entry]) -> Vec<Vec<usize>> {
    by(entries, |e| Some(e.index.to_string()))
}

fn parts_are_wholes(entries: &[Entry]) -> Vec<Vec<usize>> {
    let whole: Vec<Entry> = entries.iter().map(|e| Entry { kind: Kind::Discrete, ..e.clone() }).collect();
    (Rules::default().group)(&whole)
}

/// Who is left alone at a place joins the first other one there.
fn first_candidate(entries: &[Entry]) -> Vec<Vec<usize>> {
    let mut groups = (Rules::default().group)(entries);
    let at = |group: &[usize]| group.first().and_then(|i| entries[*i].bus.clone());
    for i in (1..groups.len()).rev() {
        let first = (0..i).find(|f| at(&groups[*f]).is_some() && at(&groups[*f]) == at(&groups[i]));
        if let (1, Some(first)) = (groups[i].len(), first) {
            let alone = groups.remove(i);
            groups[first].extend(alone);
        }
    }
    groups
}

fn one_integrated(entries: &[Entry]) -> Vec<Vec<usize>> {
    let mut groups = (Rules::default().group)(entries);
    let is_integrated = |group: &[usize]| group.iter().any(|i| entries[*i].kind == Kind::Integrated);
    let first = groups.iter().position(|g| is_integrated(g));
    let mut at = 0..;
    groups.retain(|group| at.next() == first || !is_integrated(group));
    groups
}

fn no_integrated(entries: &[Entry]) -> Vec<Vec<usize>> {
    let mut groups = (Rules::default().group)(entries);
    if entries.iter().any(|e| e.kind != Kind::Integrated) {
        groups.retain(|group| group.iter().any(|i| entries[*i].kind != Kind::Integrated));
    }
    groups
}
