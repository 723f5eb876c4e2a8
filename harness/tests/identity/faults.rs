//! Old mistakes, planted: each must be noticed by a recorded table, and by random ones.

use std::collections::BTreeMap;

use conform_harness::identity::{Claims, Entry, Kind, Listed, MemoryClaim, Rules, random};

use crate::tables::{GOLDEN, judge};

/// A wrong rule in place of a right one.
struct Fault {
    name: &'static str,
    rules: Rules,
    /// A table that shows it.
    table: &'static str,
}

/// Random tables that a fault must not survive.
const TABLES: u64 = 5_000;

fn faults() -> Vec<Fault> {
    let right = Rules::default();
    let fault = |name, table, rules| Fault { name, rules, table };
    vec![
        fault(
            "D1: bus id of property fields in 16 bytes",
            "four-equal-gpus",
            Rules { bus: of_fields, group: by_bus, ..right },
        ),
        fault("D3: merged by UUID alone", "equal-uuids", Rules { group: by_uuid, ..right }),
        fault("D3: the same without bus ids", "equal-uuids-without-bus", Rules { group: by_uuid, ..right }),
        fault("merged by name", "four-equal-gpus", Rules { group: by_name, ..right }),
        fault("D8: merged by number", "integrated-and-discrete", Rules { group: by_index, ..right }),
        fault("D10: merged by number among those that are visible", "filtered", Rules { group: by_index, ..right }),
        fault("M12: missing bus ids are equal", "missing-ids", Rules { bus: missing_are_equal, ..right }),
        fault("M12: case matters", "letter-case", Rules { bus: |d| d.identity.pci.clone(), ..right }),
        fault("M12: bus id in a buffer of 12 bytes", "functions", Rules { bus: in_12_bytes, ..right }),
        fault("domain of 16 bits", "wide-domains", Rules { bus: narrow_domain, ..right }),
        fault("merged within a driver", "listed-twice", Rules { group: by_bus, ..right }),
        fault("the first of several candidates", "several-candidates", Rules { group: first_candidate, ..right }),
        fault("UUIDs not compared", "two-virtual", Rules { uuid: |_| None, ..right }),
        fault("D15: a part is the whole", "mig", Rules { group: parts_are_wholes, ..right }),
        fault("never merged", "three-backends", Rules { group: |e| (0..e.len()).map(|i| vec![i]).collect(), ..right }),
        fault(
            "D11: only the first integrated GPU stays",
            "several-integrated",
            Rules { group: one_integrated, ..right },
        ),
        fault("D12: no integrated GPU beside others", "integrated-and-remote", Rules { group: no_integrated, ..right }),
        fault("D11: memory as it is told", "several-integrated", Rules { memory: as_told, ..right }),
        fault("D6: the first device is always named", "two-equal", Rules { names: and_the_first, ..right }),
        fault("D10: alias by number", "filtered", Rules { alias: |d| Some(d.key.clone()), ..right }),
    ]
}

#[test]
fn planted_faults_are_noticed() {
    for fault in faults() {
        let name = fault.name;
        let golden = GOLDEN.iter().find(|g| g.file == fault.table).unwrap();
        judge(golden, &Rules::default()).unwrap();
        let why = judge(golden, &fault.rules).expect_err(name);
        let first = (0..TABLES).find_map(|seed| Some((seed, random::trial(seed, &fault.rules).err()?)));
        println!("{name}: {why}; at random: {first:?}");
        assert!(first.is_some(), "{name}");
    }
}

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

fn as_told(claims: &Claims) -> MemoryClaim {
    claims.memory
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
