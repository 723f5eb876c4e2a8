//! The command line on top: listing, recording, choosing.
//!
//! Two drivers reach one GPU here: the CUDA driver that was compiled for tests, and the fake one, which says it is at the
//! same place.

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

use crate::fake::FakeDriver;
use crate::tables::folder;

/// The second of two CUDA devices is at the place of `fake-0`.
const TWO: [(&str, &str); 3] =
    [("FAKE_COUNT", "2"), ("CONFORM_FAKE", "pci=0000:3b:00.0"), ("OCL_ICD_VENDORS", "/nonexistent")];

const SORT: &str = "argsort/c=3/data=distinct/v1-1";

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[track_caller]
fn ended(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{output:#?}");
    assert!(!text(&output.stderr).contains("panicked"), "{output:#?}");
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// One line on stderr and nothing on stdout.
#[track_caller]
fn refused(output: &Output) -> String {
    ended(output, 2);
    let why = text(&output.stderr).to_owned();
    assert!(output.stdout.is_empty() && why.lines().count() == 1, "{output:#?}");
    why
}

/// The keys of each GPU that is listed.
fn physical(answer: &Value) -> Vec<Vec<&str>> {
    let all = answer["physical"].as_array().unwrap();
    all.iter().map(|p| p["devices"].as_array().unwrap().iter().map(|d| d["key"].as_str().unwrap()).collect()).collect()
}

/// `run` on the small case, and the devices that run.json says it was on.
fn run(fake: &FakeDriver, args: &[&str], environment: &[(&str, &str)]) -> (Output, Value) {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    let all = [&["run", SORT, "--out", out.to_str().unwrap()], args].concat();
    let output = fake.conform(&all, environment);
    let head = std::fs::read(out.join("run.json")).unwrap_or_else(|e| panic!("{e}: {output:#?}"));
    (output, serde_json::from_slice(&head).unwrap())
}

fn devices(head: &Value) -> Vec<&str> {
    head["devices"].as_array().unwrap().iter().map(|d| d["key"].as_str().unwrap()).collect()
}

#[test]
fn a_gpu_is_listed_once_with_all_that_reach_it() {
    let fake = FakeDriver::new(&[]);
    let output = fake.conform(&["devices", "--json"], &TWO);
    ended(&output, 0);
    let answer = json(&output);
    assert_eq!(physical(&answer), [vec!["cpu"], vec!["cuda-0"], vec!["cuda-1", "fake-0"]]);
    assert_eq!(answer["warnings"], Value::Array(vec![]));
    let output = fake.conform(&["devices"], &TWO);
    let shown = text(&output.stdout);
    assert_eq!(shown.matches("at 0000:3b:00.0").count(), 1, "{shown}");
    let after = shown.split_once("at 0000:3b:00.0").unwrap().1;
    assert!(after.contains("cuda-1 ") && after.contains("fake-0 ") && !after.contains("cuda-0 "), "{shown}");
    assert!(after.contains("alias cuda-pci-0000-3b-00.0"), "{shown}");
}

#[test]
fn what_was_recorded_is_shown_elsewhere() {
    let fake = FakeDriver::new(&[]);
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("table.json");
    let live = fake.conform(&["devices", "--record", file.to_str().unwrap()], &TWO);
    ended(&live, 0);
    // Without any of these drivers.
    let there = FakeDriver::new(&["-DNO_SYMBOLS"]);
    let shown = there.conform(&["devices", "--from", file.to_str().unwrap()], &[]);
    ended(&shown, 0);
    assert_eq!(text(&shown.stdout), text(&live.stdout));
    let shown = json(&there.conform(&["devices", "--json", "--from", file.to_str().unwrap()], &[]));
    let live = json(&fake.conform(&["devices", "--json"], &TWO));
    for part in ["physical", "warnings", "visibility", "missing"] {
        assert_eq!(shown[part], live[part], "{part}");
    }
}

#[test]
fn a_file_that_is_no_table_is_refused() {
    let fake = FakeDriver::new(&[]);
    let from = |file: &Path| refused(&fake.conform(&["devices", "--from", file.to_str().unwrap()], &[]));
    assert!(from(Path::new("/nonexistent")).starts_with("conform: --from: /nonexistent: "));
    assert!(from(Path::new(env!("CARGO_MANIFEST_PATH"))).contains("is no table of devices"));
    // A file is no folder.
    let file = concat!(env!("CARGO_MANIFEST_PATH"), "/table.json");
    let why = refused(&fake.conform(&["devices", "--record", file], &TWO));
    assert!(why.starts_with(&format!("conform: --record: cannot write {file}: ")), "{why}");
}

#[test]
fn dedupe_runs_on_a_gpu_once() {
    let fake = FakeDriver::new(&[]);
    let (_, head) = run(&fake, &[], &TWO);
    assert_eq!(devices(&head), ["cpu", "cuda-0", "cuda-1", "fake-0"]);
    let (output, head) = run(&fake, &["--dedupe"], &TWO);
    assert_eq!(devices(&head), ["cpu", "cuda-0", "cuda-1"]);
    assert_eq!(head["left_out"], serde_json::json!([{ "device": "fake-0", "stands_for_it": "cuda-1" }]));
    assert!(text(&output.stdout).contains("  without fake-0: cuda-1 is the same GPU\n"), "{output:#?}");
    // Whoever asks for one of them gets it.
    let (output, head) = run(&fake, &["--dedupe", "--device", "fake-0"], &TWO);
    ended(&output, 0);
    assert_eq!(devices(&head), ["fake-0"]);
}

/// D6, D10: the name by bus id finds the device whatever its number is, and no other.
#[test]
fn an_alias_survives_hidden_devices() {
    let fake = FakeDriver::new(&[]);
    let named = ["--device", "cuda-pci-0000-3b-00.0"];
    let (_, head) = run(&fake, &named, &TWO);
    assert_eq!(devices(&head), ["cuda-1"]);
    let hidden = [("FAKE_HIDDEN", "1"), ("OCL_ICD_VENDORS", "/nonexistent")];
    let (_, head) = run(&fake, &named, &hidden);
    assert_eq!(devices(&head), ["cuda-0"]);
    assert_eq!(head["devices"][0]["identity"]["pci"], "0000:3B:00.0");
    let output = fake.conform(&["run", SORT, "--device", "cuda-pci-0000-3a-00.0"], &hidden);
    assert!(refused(&output).contains("no device matches 'cuda-pci-0000-3a-00.0'"));
    let replayed = fake.conform(&["replay", SORT, "--device", "fake-pci-*"], &TWO);
    ended(&replayed, 0);
}

#[test]
fn a_run_refuses_devices_that_were_not_expected() {
    let fake = FakeDriver::new(&[]);
    let start = |require: &[&str], environment: &[(&str, &str)]| {
        let require = require.iter().flat_map(|r| ["--require", r]);
        let args: Vec<&str> = ["run", SORT, "--device", "fake-0"].into_iter().chain(require).collect();
        fake.conform(&args, environment)
    };
    ended(&start(&["pci=00000000:3B:00.0,name=fake device*"], &TWO), 0);
    let why = refused(&start(&["pci=0000:3c:00.0"], &TWO));
    assert!(why.contains("fake-0: its bus id is '0000:3b:00.0' and not '0000:3c:00.0'"), "{why}");
    let why = refused(&start(&["pci=0000:3b:00.0", "pci=0000:3c:00.0"], &TWO));
    assert!(why.contains("--require pci=0000:3c:00.0: no device of this run is that"), "{why}");
    let moved = [("CONFORM_FAKE", "slow=1"), ("OCL_ICD_VENDORS", "/nonexistent")];
    assert!(refused(&start(&["pci=0000:3b:00.0"], &moved)).contains("its bus id is not told"));
    assert!(refused(&fake.conform(&["run", SORT, "--require", "pci=0000:3b:00.0"], &TWO)).contains("cpu: its bus id"));
}

#[test]
fn variables_that_hide_devices_are_shown() {
    let fake = FakeDriver::new(&[]);
    let with = |value: &str| {
        let environment = [&TWO[..], &[("CUDA_VISIBLE_DEVICES", value)]].concat();
        let answer = json(&fake.conform(&["devices", "--json"], &environment));
        (answer["visibility"].clone(), answer["warnings"].clone())
    };
    let (visibility, warnings) = with("3,1");
    assert!(visibility[0].as_str().unwrap().starts_with("CUDA_VISIBLE_DEVICES=3,1: "), "{visibility}");
    assert_eq!(warnings, Value::Array(vec![]));
    // This driver doesn't obey.
    let (_, warnings) = with("1");
    assert_eq!(warnings[0], "CUDA_VISIBLE_DEVICES names 1 device(s), and 2 are listed");
    let (_, warnings) = with("0,MIG-8932f937-d72c-4106-c12f-20bd9faed9f6");
    let why = "CUDA_VISIBLE_DEVICES names MIG device 8932f937-d72c-4106-c12f-20bd9faed9f6, and cuda-1 is \
               01010101-0101-0101-0101-010101010101";
    assert_eq!(warnings[0], why);
}

#[test]
fn tables_as_they_are_shown() {
    let fake = FakeDriver::new(&["-DNO_SYMBOLS"]);
    let show = |name: &str| {
        let file = folder().join(format!("{name}.json"));
        let output = fake.conform(&["devices", "--from", file.to_str().unwrap()], &[]);
        ended(&output, 0);
        format!("$ conform devices --from golden/devices/{name}.json\n{}", text(&output.stdout))
    };
    let names =
        ["three-backends", "integrated-and-discrete", "several-integrated", "mig", "two-virtual", "listed-twice"];
    let texts: Vec<String> = names.into_iter().map(show).collect();
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../golden"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("device_tables", texts.join("\n")));
}
