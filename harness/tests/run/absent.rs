//! Drivers that are absent or broken: a reported reason, and a run that goes on with the rest.

use crate::conform::{Conform, SORT, SORT_3, conform};

/// The devices that OpenCL has here, or nothing, with the reason printed.
fn opencl_devices() -> Vec<String> {
    let devices = conform(["devices", "--json"]).opencl().end().with(0).json();
    let keys = devices["found"].as_array().unwrap().iter().map(|d| d["key"].as_str().unwrap());
    let keys: Vec<String> = keys.filter(|key| key.starts_with("opencl-")).map(str::to_owned).collect();
    if keys.is_empty() {
        println!("skipped: no OpenCL device here: {}", devices["missing"]);
    }
    keys
}

/// Ways to have no OpenCL.
fn without_opencl(args: &[&str]) -> [Conform; 2] {
    let vendors = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    [conform(args), conform(args).env("OCL_ICD_VENDORS", vendors)]
}

#[test]
fn no_opencl_is_a_reason() {
    for devices in without_opencl(&["devices"]) {
        let devices = devices.end().with(0);
        assert!(devices.stdout.starts_with("cpu "), "{devices:#?}");
        let reasons: Vec<_> = devices.stdout.lines().filter(|l| l.starts_with("not found: opencl: ")).collect();
        assert!(reasons.len() == 1 && devices.stderr.is_empty(), "{devices:#?}");
    }
    for devices in without_opencl(&["devices", "--json"]) {
        let json = devices.end().with(0).json();
        assert_eq!(json["found"][0]["key"], "cpu");
        assert_eq!(json["missing"][0]["backend"], "opencl");
    }
}

#[test]
fn a_run_without_opencl_goes_on_and_says_so() {
    for run in without_opencl(&["run", SORT]) {
        let run = run.end().with(0);
        assert!(run.stdout.contains("  no opencl: "), "{run:#?}");
    }
    for run in without_opencl(&["run", SORT, "--device", "opencl-*"]) {
        let run = run.end().with(2);
        assert!(run.stderr.contains("not found: opencl: "), "{run:#?}");
    }
}

#[test]
fn a_driver_that_does_not_compile() {
    let Some(key) = opencl_devices().into_iter().next() else { return };
    let run = |args: &[&str]| {
        let run = conform([&["run", SORT, SORT_3], args].concat()).opencl();
        run.env("CONFORM_OPENCL_OPTIONS", "-this-is-no-option").end()
    };
    let named = run(&["--device", &key]).with(1);
    let reason = format!("{key}: device '{key}': clBuildProgram ");
    assert_eq!(named.stderr.lines().filter(|l| l.starts_with(&reason)).count(), 1, "{named:#?}");
    assert_eq!(named.stderr.lines().count(), 1, "{named:#?}");
    let unnamed = run(&[]).with(1);
    assert!(unnamed.stderr.contains(&reason), "{unnamed:#?}");
    assert!(unnamed.stdout.contains(&format!("unavailable: device '{key}'")), "{unnamed:#?}");
    let replay = conform(["replay", SORT, "--device", &key]).opencl();
    let replay = replay.env("CONFORM_OPENCL_OPTIONS", "-this-is-no-option").end().with(125);
    assert!(replay.stderr.contains(&reason), "{replay:#?}");
}

#[test]
fn every_opencl_device_passes_a_small_case() {
    for key in opencl_devices() {
        let run = conform(["run", SORT, SORT_3, "--device", &key]).opencl().end().with(0);
        assert!(run.stdout.contains("2 cases in "), "{run:#?}");
    }
}
