//! The kernels that only some devices run: tiles in f16, and sub-groups. Where none here does, a test says so and passes.
//! `ci/install-intel-opencl.sh` fetches an OpenCL that has both.

use conform_cases::formats::ElemType;
use conform_harness::backend::opencl::{OpenCl, SOURCES, Source};
use conform_harness::backend::{Device, DeviceInfo, Driver, Probe};

use crate::kernels::mul_mat_id::{Spec, check, compare, execute};

/// A device of this machine that has what a test needs, by key.
fn found(what: &str, has: impl Fn(&DeviceInfo) -> bool) -> Option<String> {
    let devices = match OpenCl.probe() {
        Probe::Found(devices) | Probe::FoundPart { devices, .. } => devices,
        Probe::Missing(_) => Vec::new(),
    };
    let key = devices.into_iter().find(has).map(|d| d.key);
    if key.is_none() {
        let required = std::env::var("CONFORM_REQUIRE").unwrap_or_default();
        assert!(!required.contains("opencl-intel"), "Intel's OpenCL is required here, and no device has {what}");
        println!("no OpenCL device here has {what}: nothing ran");
    }
    key
}

fn with_half() -> Option<String> {
    found("cl_khr_fp16", |d| d.key.ends_with("+f16"))
}

fn with_subgroups() -> Option<String> {
    found("sub-groups", |d| d.properties["subgroups"] == "used")
}

fn open(key: &str) -> Box<dyn Device> {
    OpenCl.open(key).unwrap()
}

/// A case of tiles in f16.
fn half(spec: Spec) -> Spec {
    Spec { half: true, ..spec }
}

#[test]
fn f16_tiles() {
    let Some(mut device) = with_half().map(|key| open(&key)) else { return };
    for tokens in [2, 33, 65] {
        for (k, m) in [(32, 1), (32, 63), (96, 64), (96, 65), (160, 129)] {
            check(&mut *device, &half(Spec { k, m, tokens, margins: tokens == 2, ..Spec::default() }));
        }
    }
    for per_token in [1, 2, 3, 6] {
        check(&mut *device, &half(Spec { used: 6, per_token, tokens: 4, margins: true, ..Spec::default() }));
    }
    let patterns: [fn(usize, usize) -> i32; 3] = [
        |_, experts| experts as i32 - 1,
        |slot, experts| [0, -1, 0, experts as i32, 1, i32::MAX, i32::MIN, 2][slot % 8],
        |_, experts| experts as i32,
    ];
    for ids in patterns {
        check(&mut *device, &half(Spec { ids, used: 17, tokens: 5, m: 20, margins: true, ..Spec::default() }));
    }
}

/// Small weights become zero, large ones infinite, and byte 255 NaN.
#[test]
fn f16_tiles_of_every_scale_byte() {
    let Some(mut device) = with_half().map(|key| open(&key)) else { return };
    for scale in 0..=255 {
        // Between these products may leave the range of f16 on the way.
        if !(138..=143).contains(&scale) {
            check(&mut *device, &half(Spec { scales: scale..=scale, m: 5, k: 32, ..Spec::default() }));
        }
    }
}

/// All but tiles of MXFP4 is the plain device's, bit by bit.
#[test]
fn f16_changes_nothing_else() {
    let Some(key) = with_half() else { return };
    let (mut half, mut plain) = (open(&key), open(key.strip_suffix("+f16").unwrap()));
    for ty in ElemType::WEIGHTS {
        for tokens in [1, 3] {
            let spec = Spec { ty, k: 2 * ty.block_len().max(32), tokens, ..Spec::default() };
            let same = execute(&mut *half, &spec).2 == execute(&mut *plain, &spec).2;
            assert_eq!(same, ty != ElemType::Mxfp4 || tokens == 1, "{spec}");
        }
    }
}

/// Fewer blocks than a sub-group has lanes, more, and every remainder of rows.
#[test]
fn subgroups() {
    let Some(mut device) = with_subgroups().map(|key| open(&key)) else { return };
    for blocks in [1, 2, 3, 5, 8, 15, 16, 17, 37, 64, 65, 130] {
        check(&mut *device, &Spec { k: 32 * blocks, m: 17, tokens: 1, ..Spec::default() });
    }
    for m in 1..=33 {
        check(&mut *device, &Spec { m, k: 96, tokens: 1, used: 3, per_token: 3, margins: true, ..Spec::default() });
    }
}

/// Faults that are planted into the kernels, each by another text in place of one.
const F16_FAULTS: [(&str, &str); 5] = [
    ("sum[s] += convert_float(together);", "sum[s] = convert_float(together);"),
    ("half together = w[0] * x[TOGETHER * j][s];", "half together = w[0];"),
    ("k0 % 32 / 8 + j", "j"),
    ("E2M1[(word >> (4 * i)) & 15u]", "E2M1[(word >> (4 * i)) & 7u]"),
    ("* block_scale", ""),
];
const SUBGROUP_FAULTS: [(&str, &str); 4] = [
    ("sub_group_reduce_add(sum)", "sum"),
    ("b += get_sub_group_size()", "b += get_sub_group_size() + 1"),
    ("row += get_num_sub_groups()", "row += get_num_sub_groups() + 1"),
    ("slot % per_token", "0ul"),
];

/// Each fault must make a difference, and the kernel without it none.
fn faults(key: &str, file: &str, faults: &[(&str, &str)], spec: &Spec) {
    let difference = |sources: &[Source]| {
        let mut device = OpenCl.open_with(key, sources).unwrap();
        let (plan, inputs, bytes) = execute(&mut *device, spec);
        compare(spec, &plan, &inputs, &bytes)
    };
    assert_eq!(difference(&SOURCES), Ok(()));
    for (right, wrong) in faults {
        let mut sources = SOURCES.to_vec();
        let source = sources.iter_mut().find(|s| s.name == file).unwrap();
        assert!(source.text.contains(right), "{file} has no '{right}'");
        source.text = source.text.replace(right, wrong).into();
        assert!(difference(&sources).is_err(), "{file} with '{wrong}' in place of '{right}' is as good");
    }
}

#[test]
fn faults_in_f16_tiles_are_caught() {
    let Some(key) = with_half() else { return };
    faults(&key, "gemm_half", &F16_FAULTS, &half(Spec { k: 96, tokens: 9, ..Spec::default() }));
}

#[test]
fn faults_in_subgroups_are_caught() {
    let Some(key) = with_subgroups() else { return };
    let spec = Spec { k: 32 * 130, used: 4, per_token: 2, tokens: 1, ..Spec::default() };
    faults(&key, "gemv_subgroups", &SUBGROUP_FAULTS, &spec);
}
