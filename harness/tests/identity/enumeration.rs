//! Drivers that break while they are asked for devices: the listing answers all the same, and says why they have none.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn devices(with: impl Fn(&mut Command) -> &mut Command) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conform"));
    command.args(["devices", "--json"]).env("OCL_ICD_VENDORS", "/nonexistent").env_remove("CONFORM_FAKE");
    answer(with(&mut command).output().unwrap())
}

/// What is listed: JSON and nothing else, with the device that every machine has.
fn answer(output: Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    assert!(keys(&answer).contains(&"cpu"), "{answer}");
    answer
}

fn keys(answer: &Value) -> Vec<&str> {
    answer["found"].as_array().unwrap().iter().map(|d| d["key"].as_str().unwrap()).collect()
}

/// Why a backend has no devices: one line.
fn reason(answer: &Value, backend: &str) -> String {
    let missing = answer["missing"].as_array().unwrap();
    let why = missing.iter().find(|m| m["backend"] == backend).unwrap_or_else(|| panic!("{answer}"))["why"].as_str();
    let why = why.unwrap().to_owned();
    assert!(!why.contains('\n'), "{why}");
    why
}

#[test]
fn a_driver_that_crashes_is_a_reason() {
    let answer = devices(|c| c.env("CONFORM_FAKE", "probe-crash"));
    assert!(reason(&answer, "fake").contains("SIGABRT"), "{answer}");
    assert!(!keys(&answer).contains(&"fake-0"));
}

#[test]
fn one_crash_is_not_believed() {
    let state = TempDir::new().unwrap();
    let answer = devices(|c| c.env("CONFORM_FAKE", "probe-crash*1").env("CONFORM_FAKE_STATE", state.path()));
    assert!(keys(&answer).contains(&"fake-0"), "{answer}");
}

#[test]
fn a_driver_that_prints_is_not_heard() {
    let answer = devices(|c| c.env("CONFORM_FAKE", "probe-chatter"));
    assert!(keys(&answer).contains(&"fake-0"), "{answer}");
}

/// A folder with an OpenCL loader that breaks.
fn loader() -> TempDir {
    let folder = TempDir::new().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/identity/loader.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-fexceptions", "-w", "-o"]).arg(folder.path().join("libOpenCL.so.1")).arg(source);
    assert!(cc.arg("-lgcc_s").status().unwrap().success());
    folder
}

fn with_loader(folder: &Path, how: &str) -> Value {
    devices(|c| c.env("LD_LIBRARY_PATH", folder).env("LOADER", how))
}

#[test]
fn a_loader_that_breaks_is_a_reason() {
    let folder = loader();
    let reason = |how| reason(&with_loader(folder.path(), how), "opencl");
    assert_eq!(reason("find nothing"), "the OpenCL loader knows no platform");
    assert_eq!(reason("print"), "the OpenCL loader knows no platform");
    assert!(reason("abort").contains("SIGABRT"), "{}", reason("abort"));
    assert!(reason("print and abort").contains("SIGABRT"));
    // What was printed last usually tells.
    assert!(reason("print and abort").contains("a lie"));
    assert!(reason("exit").contains("exit"), "{}", reason("exit"));
    assert!(reason("hand out").contains("SIGSEGV"), "{}", reason("hand out"));
    // The exception meets frames that are not C's: whoever ends the process, it is told.
    let thrown = reason("throw");
    assert!(["SIGABRT", "exit"].iter().any(|end| thrown.contains(end)), "{thrown}");
}
