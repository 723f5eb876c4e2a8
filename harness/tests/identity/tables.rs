//! The recorded tables in `golden/devices`, and random ones.

use std::collections::BTreeSet;
use std::path::PathBuf;

use conform_harness::identity::{
    Kind, Listed, Physical, Resolved, Rules, Table, invariant, random, resolve, tell_apart,
};

/// The physical devices of a table, each as the keys that reach it.
pub(crate) struct Golden {
    pub(crate) file: &'static str,
    pub(crate) physical: &'static [&'static [&'static str]],
    /// Parts of the warnings that must be there; there are no others.
    warnings: &'static [&'static str],
}

/// What every table comes to.
pub(crate) const GOLDEN: &[Golden] = &[
    // As recorded on a machine with an NVIDIA H200.
    Golden {
        file: "machine-h200",
        physical: &[
            &["cpu"],
            &["cuda-0", "ggml-v0.5.0-vulkan-0", "opencl-nvidia-0"],
            &["ggml-v0.5.0-cpu-haswell", "ggml-v0.5.0-cpu-haswell+repack"],
            &["ggml-v0.5.0-cpu-x64", "ggml-v0.5.0-cpu-x64+repack"],
            &["opencl-pocl-0"],
        ],
        warnings: &[],
    },
    Golden {
        file: "four-equal-gpus",
        physical: &[
            &["cuda-0", "opencl-nvidia-3"],
            &["cuda-1", "opencl-nvidia-2"],
            &["cuda-2", "opencl-nvidia-1"],
            &["cuda-3", "opencl-nvidia-0"],
        ],
        warnings: &[],
    },
    Golden {
        file: "equal-uuids",
        physical: &[
            &["ggml-b9842-vulkan-0", "opencl-apple-0"],
            &["ggml-b9842-vulkan-1", "opencl-apple-1"],
            &["ggml-b9842-vulkan-2", "opencl-apple-2"],
            &["ggml-b9842-vulkan-3", "opencl-apple-3"],
        ],
        warnings: &[
            "one UUID to ggml-b9842-vulkan-0 and ggml-b9842-vulkan-1",
            "one UUID to ggml-b9842-vulkan-2 and ggml-b9842-vulkan-3",
            "one UUID to opencl-apple-0 and opencl-apple-1",
            "one UUID to opencl-apple-2 and opencl-apple-3",
        ],
    },
    Golden {
        file: "equal-uuids-without-bus",
        physical: &[
            &["ggml-b9842-vulkan-0"],
            &["ggml-b9842-vulkan-1"],
            &["ggml-b9842-vulkan-2"],
            &["ggml-b9842-vulkan-3"],
            &["opencl-apple-0"],
        ],
        warnings: &[
            "one UUID to ggml-b9842-vulkan-0 and ggml-b9842-vulkan-1",
            "one UUID to ggml-b9842-vulkan-2 and ggml-b9842-vulkan-3",
            "ggml-b9842-vulkan-0 and opencl-apple-0 have one UUID and may be one GPU",
            "ggml-b9842-vulkan-1 and opencl-apple-0 have one UUID and may be one GPU",
        ],
    },
    Golden {
        file: "listed-twice",
        physical: &[&["opencl-amd-0"], &["opencl-amd-1"]],
        warnings: &["opencl-amd lists one GPU twice: opencl-amd-0 and opencl-amd-1 are both at 0000:03:00.0"],
    },
    Golden {
        file: "several-candidates",
        physical: &[&["cuda-0"], &["cuda-1"], &["opencl-nvidia-0"]],
        warnings: &[
            "cuda lists two GPUs at 0000:01:00.0, cuda-0 and cuda-1, with different UUIDs",
            "opencl-nvidia-0 at 0000:01:00.0 may be any of cuda-0, cuda-1",
        ],
    },
    Golden {
        file: "missing-ids",
        physical: &[
            &["cuda-0"],
            &["ggml-b9842-cuda-0"],
            &["ggml-b9842-vulkan-0"],
            &["ggml-v0.5.0-cuda-0"],
            &["ggml-v0.5.0-vulkan-0"],
            &["opencl-nvidia-0"],
        ],
        warnings: &[
            "ggml-b9842-vulkan-0: its driver's bus id '' is no PCI bus id",
            "ggml-b9842-vulkan-0: its driver's UUID '' is no UUID",
            "ggml-v0.5.0-vulkan-0: its driver's bus id '' is no PCI bus id",
            "ggml-v0.5.0-vulkan-0: its driver's UUID '' is no UUID",
        ],
    },
    Golden { file: "letter-case", physical: &[&["cuda-0", "ggml-b9842-cuda-0", "opencl-nvidia-0"]], warnings: &[] },
    Golden {
        file: "wide-domains",
        physical: &[&["cuda-0", "opencl-nvidia-1"], &["cuda-1", "opencl-nvidia-2"], &["cuda-2", "opencl-nvidia-0"]],
        warnings: &[],
    },
    Golden {
        file: "functions",
        physical: &[
            &["ggml-b9842-vulkan-0", "opencl-amd-3"],
            &["ggml-b9842-vulkan-1", "opencl-amd-2"],
            &["ggml-b9842-vulkan-2", "opencl-amd-1"],
            &["ggml-b9842-vulkan-3", "opencl-amd-0"],
        ],
        warnings: &[],
    },
    Golden {
        file: "three-backends",
        physical: &[
            &["cpu"],
            &["cuda-0", "ggml-b9842-vulkan-0", "opencl-nvidia-0"],
            &["ggml-b9842-cpu-haswell", "ggml-b9842-cpu-haswell+repack"],
        ],
        warnings: &[],
    },
    Golden {
        file: "integrated-and-discrete",
        physical: &[
            &["cuda-0", "ggml-b9842-vulkan-1", "ggml-v0.5.0-vulkan-0", "opencl-nvidia-0"],
            &["ggml-b9842-vulkan-0", "ggml-v0.5.0-vulkan-1", "opencl-intel-0"],
        ],
        warnings: &[],
    },
    Golden {
        file: "several-integrated",
        physical: &[&["cuda-0", "ggml-b9842-cuda-0"], &["ggml-b9842-cuda-1"]],
        warnings: &[
            "ggml-b9842-cuda-0: its driver says 62277025792 bytes are free of 17179869184",
            "the GPU at 0000:01:00.0 is discrete to cuda-0 and integrated to ggml-b9842-cuda-0",
        ],
    },
    Golden {
        file: "integrated-and-remote",
        physical: &[&["ggml-b9842-rpc-0"], &["ggml-b9842-vulkan-0"]],
        warnings: &[],
    },
    Golden {
        file: "wrapped",
        physical: &[&["ggml-b9842-vulkan-0"], &["ggml-b9842-vulkan-1"]],
        warnings: &["lists one adapter twice: ggml-b9842-vulkan-0 and ggml-b9842-vulkan-1 have one LUID"],
    },
    Golden { file: "mig", physical: &[&["cuda-0"], &["ggml-b9842-vulkan-0"]], warnings: &[] },
    Golden {
        file: "two-virtual",
        physical: &[&["cuda-0", "opencl-nvidia-1"], &["cuda-1", "opencl-nvidia-0"], &["ggml-b9842-cuda-0"]],
        warnings: &["ggml-b9842-cuda-0 at 0000:07:00.0 may be any of cuda-0, cuda-1, opencl-nvidia-0, opencl-nvidia-1"],
    },
    Golden {
        file: "unfiltered",
        physical: &[&["ggml-b9842-vulkan-0", "opencl-amd-0"], &["ggml-b9842-vulkan-1", "opencl-amd-1"]],
        warnings: &[],
    },
    Golden {
        file: "filtered",
        physical: &[&["ggml-b9842-vulkan-0", "opencl-amd-1"], &["opencl-amd-0"]],
        warnings: &[],
    },
    Golden { file: "two-equal", physical: &[&["cuda-0"], &["cuda-1"]], warnings: &[] },
];

pub(crate) fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../golden/devices"))
}

pub(crate) fn table(file: &str) -> Vec<Listed> {
    Table::read(&folder().join(format!("{file}.json"))).unwrap().devices
}

/// The keys of each physical device.
fn keys<'a>(resolved: &'a Resolved) -> BTreeSet<Vec<&'a str>> {
    // Sorted, as they stand above.
    let of = |p: &'a Physical| p.devices.iter().map(|d| d.key.as_str()).collect::<BTreeSet<&str>>();
    resolved.physical.iter().map(|p| of(p).into_iter().collect()).collect()
}

/// What is wrong with the answer of these rules to a table.
pub(crate) fn judge(golden: &Golden, rules: &Rules) -> Result<(), String> {
    let devices = table(golden.file);
    let resolved = resolve(&devices, rules);
    let wanted: BTreeSet<Vec<&str>> = golden.physical.iter().map(|keys| keys.to_vec()).collect();
    if keys(&resolved) != wanted {
        return Err(format!("{}: {:?}", golden.file, keys(&resolved)));
    }
    let checked = invariant::check(&devices, &resolved.physical).and_then(|()| invariant::names(&devices, rules));
    checked.map_err(|why| format!("{}: {why}", golden.file))
}

#[test]
fn recorded_tables_come_to_the_right_devices() {
    for golden in GOLDEN {
        judge(golden, &Rules::default()).unwrap();
        let warnings = resolve(&table(golden.file), &Rules::default()).warnings;
        assert_eq!(warnings.len(), golden.warnings.len(), "{}: {warnings:#?}", golden.file);
        for wanted in golden.warnings {
            assert!(warnings.iter().any(|w| w.contains(wanted)), "{}: {wanted}: {warnings:#?}", golden.file);
        }
    }
}

#[test]
fn every_table_is_looked_at() {
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        // A machine's own table was recorded there, and its devices are as they are.
        let is_known = name.starts_with("machine-") || GOLDEN.iter().any(|g| g.file == name);
        assert!(is_known && path.extension().unwrap() == "json", "{} is not tested", path.display());
        let devices = table(name);
        invariant::check(&devices, &tell_apart(&devices, &Rules::default())).unwrap();
        invariant::names(&devices, &Rules::default()).unwrap();
    }
}

#[test]
fn a_hundred_thousand_random_tables_keep_the_invariants() {
    const TABLES: u64 = 100_000;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    std::thread::scope(|scope| {
        for first in 0..threads {
            scope.spawn(move || {
                for seed in (first..TABLES).step_by(threads as usize) {
                    random::trial(seed, &Rules::default()).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
                }
            });
        }
    });
}

#[test]
fn random_tables_have_what_they_should_try() {
    let (mut merged, mut kept_apart, mut nowhere, mut forms, mut cut, mut doubtful) = (0, 0, 0, 0, 0, 0);
    for seed in 0..2000 {
        let devices = random::draw(seed).devices;
        let resolved = resolve(&devices, &Rules::default());
        let place = |key: &str| devices.iter().find(|d| d.key == key).unwrap().identity.pci_id();
        merged += u32::from(resolved.physical.iter().any(|p| p.devices.len() > 2));
        nowhere += u32::from(devices.iter().any(|d| d.identity.pci_id().is_none()));
        forms += u32::from(devices.iter().any(|d| d.key.contains('+')));
        cut += u32::from(devices.iter().any(|d| d.identity.kind == Kind::Virtual));
        doubtful += u32::from(!resolved.warnings.is_empty());
        let buses: Vec<_> = resolved.physical.iter().filter_map(|p| place(&p.devices[0].key)).collect();
        kept_apart += u32::from(buses.iter().collect::<BTreeSet<_>>().len() < buses.len());
    }
    for (what, count) in [
        ("merged", merged),
        ("kept apart", kept_apart),
        ("without bus", nowhere),
        ("forms", forms),
        ("cut", cut),
        ("doubtful", doubtful),
    ] {
        assert!(count > 300, "{what}: {count} of 2000");
    }
}

/// D10, D8: what a device is called and how much memory it has does not depend on its number.
#[test]
fn a_hidden_device_changes_nothing_for_the_others() {
    let (before, after) = (table("unfiltered"), table("filtered"));
    let physical = |devices: &[Listed], alias: &str| {
        let resolved = resolve(devices, &Rules::default());
        let has = |p: &&Physical| p.devices.iter().any(|d| d.alias.as_deref() == Some(alias));
        let found: Vec<_> = resolved.physical.iter().filter(has).cloned().collect();
        let [one] = &found[..] else { panic!("{alias}: {found:?}") };
        (one.pci.clone(), one.kind, one.total_memory, one.free_memory)
    };
    for alias in ["ggml-b9842-vulkan-pci-0000-03-00.0", "opencl-amd-pci-0000-03-00.0"] {
        assert_eq!(physical(&before, alias), physical(&after, alias));
    }
    let gib = |n: u64| Some(n << 30);
    let (_, kind, total, free) = physical(&after, "ggml-b9842-vulkan-pci-0000-03-00.0");
    assert_eq!((kind, total, free), (Kind::Discrete, gib(24), gib(23)));
    let (_, kind, total, _) = physical(&after, "opencl-amd-pci-0000-0e-00.0");
    assert_eq!((kind, total), (Kind::Integrated, gib(16)));
}

/// D11: more free memory than there is is not believed, and what drivers disagree about is not known.
#[test]
fn memory_and_kind_are_what_can_be_believed() {
    let resolved = resolve(&table("several-integrated"), &Rules::default());
    let first = resolved.of("ggml-b9842-cuda-0").unwrap();
    assert_eq!((first.kind, first.free_memory, first.total_memory), (Kind::Unknown, None, Some(16 << 30)));
    let second = resolved.of("ggml-b9842-cuda-1").unwrap();
    assert_eq!((second.kind, second.free_memory), (Kind::Integrated, Some(15 << 30)));
}

/// D15: a part of a GPU has the memory of the part.
#[test]
fn a_part_is_not_the_whole() {
    let resolved = resolve(&table("mig"), &Rules::default());
    let of = |key: &str| resolved.of(key).map(|p| (p.kind, p.total_memory.unwrap() >> 30)).unwrap();
    assert_eq!(of("cuda-0"), (Kind::Virtual, 20));
    assert_eq!(of("ggml-b9842-vulkan-0"), (Kind::Discrete, 40));
}
