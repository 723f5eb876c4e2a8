//! The host's side on a driver that was compiled for these tests (`driver.c`): what is not there is a reason, and what
//! fails is told and harms nothing else.

use std::process::{Command, Output};

use conform_cases::plan::{Part, Place};
use conform_harness::backend::Driver;
use conform_harness::backend::cuda::Cuda;

use serde_json::Value;

use crate::fake::{FakeDriver, conform};
use crate::kernels::moves;

impl FakeDriver {
    /// Why there is no CUDA device, in a line.
    fn reason(&self, environment: &[(&str, &str)]) -> String {
        reason(&self.conform(&["devices", "--json"], environment))
    }

    /// Verdict and all the rest of each case's result.
    fn replay(&self, cases: &[&str], environment: &[(&str, &str)]) -> Vec<(String, String)> {
        let output = self.conform(&[&["replay", "--json", "--device", "cuda-0"], cases].concat(), environment);
        let results: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        results.iter().map(|r| (r["verdict"].as_str().unwrap_or_default().to_owned(), r.to_string())).collect()
    }
}

/// Runs a test of this file again, in a process whose driver is the fake one.
fn again(fake: &FakeDriver, test: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command.env("LD_LIBRARY_PATH", fake.folder.path()).env("CONFORM_NVRTC", fake.library());
    command.env("CONFORM_CUDA_CACHE", "off").envs(environment.iter().copied()).output().unwrap()
}

fn reason(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let missing = answer["missing"].as_array().unwrap();
    let cuda = missing.iter().find(|m| m["backend"] == "cuda").unwrap_or_else(|| panic!("{answer}"));
    let why = cuda["why"].as_str().unwrap();
    assert!(!why.contains("panicked") && !why.contains('\n'), "{why}");
    why.to_owned()
}

#[track_caller]
fn says(text: &str, wanted: &str) {
    assert!(text.contains(wanted), "{text:?} does not say {wanted:?}");
}

#[test]
fn whatever_is_not_there_is_a_reason() {
    let fake = FakeDriver::new(&[]);
    says(&fake.reason(&[("FAKE_INIT", "803")]), "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)");
    says(&fake.reason(&[("FAKE_INIT", "35")]), "cuInit: error 35, unknown to the driver");
    says(&fake.reason(&[("FAKE_VERSION", "11080")]), "too old: it supports CUDA 11.8, 12.0 is needed");
    says(&fake.reason(&[("FAKE_COUNT", "0")]), "has no device");
    let why = fake.reason(&[("CONFORM_NVRTC", "/none/libnvrtc.so")]);
    says(&why, "CONFORM_NVRTC=/none/libnvrtc.so");
    says(&why, "No such file");
    says(&why, "CUDA 13.0, has 1 device(s)");
}

#[test]
fn a_missing_symbol_is_a_reason() {
    let old = FakeDriver::new(&["-DNO_SYMBOLS"]);
    says(&old.reason(&[]), "the CUDA driver's library has no cuDriverGetVersion: it is too old");
    let fake = FakeDriver::new(&[]);
    let path = old.library().display().to_string();
    says(&fake.reason(&[("CONFORM_NVRTC", &path)]), "it has no nvrtcVersion");
}

#[test]
fn neither_driver_nor_compiler_is_a_reason() {
    // On a machine that has a driver there is nothing to be seen.
    let empty = tempfile::tempdir().unwrap();
    let output = conform(empty.path(), &["devices", "--json"], |command| command);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    if answer["found"].as_array().unwrap().iter().all(|d| d["backend"] != "cuda") {
        reason(&output);
    }
}

#[test]
fn devices_are_described() {
    let fake = FakeDriver::new(&[]);
    let output = fake.conform(&["devices", "--json"], &[("FAKE_COUNT", "2")]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = answer["found"].as_array().unwrap();
    let device = found.iter().find(|d| d["key"] == "cuda-1").unwrap_or_else(|| panic!("{answer}"));
    assert_eq!((&device["name"], &device["driver"]), (&"Fake GPU 1".into(), &"CUDA 13.0, NVRTC 13.0".into()));
    for (property, value) in [("compute_capability", "9.0"), ("global_mem", "1073741824"), ("pci_attributes", "1:1:1")]
    {
        assert_eq!(device["properties"][property], value, "{property}");
    }
    let identity = serde_json::json!({
        "driver": "cuda", "index": 1, "pci": "0000:3B:00.0", "uuid": "01010101-0101-0101-0101-010101010101",
        "kind": "discrete", "memory": { "total": 1 << 30 },
    });
    assert_eq!((&device["identity"], &device["alias"]), (&identity, &"cuda-pci-0000-3b-00.0".into()));
}

const LARGE: &str = "argsort/c=16384,r=16/data=uniform/v1-1";
const SMALL: &str = "argsort/c=1024,r=64/data=uniform/v1-1";

#[test]
fn out_of_memory_is_unsupported_and_frees_everything() {
    let fake = FakeDriver::new(&[]);
    // x and out of the large case have 1 MiB each: the second one does not fit, nor does the small case beside the first.
    let results = fake.replay(&[LARGE, SMALL], &[("FAKE_MEMORY", "1310720")]);
    let [(large, why), (small, _)] = &results[..] else { panic!("{results:?}") };
    assert_eq!(large, "unsupported", "{why}");
    says(why, "cuMemAlloc out: CUDA_ERROR_OUT_OF_MEMORY (2), out of memory: 1048576 bytes after 1048576 of the plan");
    says(why, "262144 of the device's 1310720 are free");
    // It was loaded and run, by kernels that write nothing.
    assert_eq!(small, "fail");
}

#[test]
fn a_failed_launch_is_told_and_the_next_case_runs() {
    let fake = FakeDriver::new(&[]);
    for (name, what) in [("FAKE_LAUNCH", "cuLaunchKernel argsort_rows"), ("FAKE_SYNC", "cuCtxSynchronize context")] {
        let results = fake.replay(&[SMALL, "argsort/c=3/data=ties/v1-1"], &[(name, "700")]);
        assert_eq!(results.len(), 2, "{results:?}");
        for (verdict, result) in &results {
            assert_eq!(verdict, "fail");
            says(result, &format!("{what}: CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
        }
    }
}

#[test]
fn a_kernel_that_does_not_compile_is_one_line() {
    let fake = FakeDriver::new(&[]);
    let output = fake.conform(&["replay", SMALL, "--device", "cuda-0"], &[("FAKE_COMPILE", "6")]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    says(&text, "argsort.cu: nvrtcCompileProgram: NVRTC_ERROR_COMPILATION: a.cu(3): error: as asked");
    let output = fake.conform(&["replay", SMALL, "--device", "cuda-0"], &[("FAKE_ARCH", "100")]);
    says(&String::from_utf8_lossy(&output.stderr), "NVRTC 13.0 does not compile for compute capability 9.0");
}

/// Nothing that was queued moves before someone waits: what is freed too early, or read too early, is seen.
#[test]
fn transfers_are_queued_and_waited_for() {
    let fake = FakeDriver::new(&[]);
    let output = again(&fake, "host::bytes_move_in_process", &[]);
    says(&String::from_utf8_lossy(&output.stdout), "1 passed");
}

#[test]
#[ignore = "run by transfers_are_queued_and_waited_for"]
fn bytes_move_in_process() {
    moves::check(&mut *Cuda.open("cuda-0").unwrap());
    moves::check(&mut *Cuda.open_gathering("cuda-0").unwrap());
}

/// Where there is no room for staging memory pieces are moved one by one.
#[test]
fn pieces_move_without_staging_memory() {
    let fake = FakeDriver::new(&[]);
    // The three tensors of the plan have 3664 bytes.
    let output = again(&fake, "host::rows_in_process", &[("FAKE_MEMORY", "3700")]);
    says(&String::from_utf8_lossy(&output.stdout), "1 passed");
}

#[test]
#[ignore = "run by pieces_move_without_staging_memory"]
fn rows_in_process() {
    moves::compare(&mut *Cuda.open_gathering("cuda-0").unwrap(), &moves::rows(), 1).unwrap();
}

/// What brings pieces together is compiled when it is needed, and not before.
#[test]
fn most_devices_need_no_kernels_that_move_pieces() {
    let fake = FakeDriver::new(&[]);
    let output = again(&fake, "host::no_kernels_in_process", &[("FAKE_MOVES", "700")]);
    says(&String::from_utf8_lossy(&output.stdout), "1 passed");
}

#[test]
#[ignore = "run by most_devices_need_no_kernels_that_move_pieces"]
fn no_kernels_in_process() {
    moves::compare(&mut *Cuda.open("cuda-0").unwrap(), &moves::rows(), 1).unwrap();
    let why = moves::compare(&mut *Cuda.open_gathering("cuda-0").unwrap(), &moves::rows(), 1).unwrap_err();
    says(&why, "cuModuleGetFunction gather: CUDA_ERROR_ILLEGAL_ADDRESS (700)");
}

#[test]
fn a_failed_transfer_fails_the_call() {
    let fake = FakeDriver::new(&[]);
    for (name, number) in [("FAKE_TRANSFER", "3"), ("FAKE_SYNC", "700")] {
        let output = again(&fake, "host::failure_in_process", &[(name, number)]);
        says(&String::from_utf8_lossy(&output.stdout), "1 passed");
    }
}

#[test]
#[ignore = "run by a_failed_transfer_fails_the_call"]
fn failure_in_process() {
    let fails_late = std::env::var_os("FAKE_SYNC").is_some();
    let mut device = Cuda.open("cuda-0").unwrap();
    if fails_late {
        // Loading waits as well.
        says(&device.load(&moves::rows()).unwrap_err().to_string(), "cuCtxSynchronize context");
        return;
    }
    device.load(&moves::rows()).unwrap();
    let row = Place { at: 0, stride: 64 };
    let part = Part { tensor: 0, here: row, there: row, size: 16, count: 4 };
    let why = device.upload(&[1; 256], &[part]).unwrap_err().0;
    says(&why, "cuMemcpy2DAsync k: CUDA_ERROR_ILLEGAL_ADDRESS (700)");
    says(&device.fetch(&mut [0; 256], &[part]).unwrap_err().0, "the context is lost since cuMemcpy2DAsync k");
}

#[test]
fn a_failed_transfer_of_pieces_fails_the_call() {
    let fake = FakeDriver::new(&[]);
    let output = again(&fake, "host::failure_of_pieces_in_process", &[("FAKE_TRANSFER", "3")]);
    says(&String::from_utf8_lossy(&output.stdout), "1 passed");
}

#[test]
#[ignore = "run by a_failed_transfer_of_pieces_fails_the_call"]
fn failure_of_pieces_in_process() {
    let mut device = Cuda.open_gathering("cuda-0").unwrap();
    device.load(&moves::rows()).unwrap();
    let row = Place { at: 0, stride: 64 };
    let part = Part { tensor: 0, here: row, there: row, size: 16, count: 4 };
    // Nothing is left over of the first one.
    let why = device.fetch(&mut [0; 256], &[part, Part { tensor: 1, ..part }]).unwrap_err().0;
    says(&why, "cuLaunchKernel gather: CUDA_ERROR_ILLEGAL_ADDRESS (700), moving pieces of k and 1 other tensors");
    says(&device.upload(&[1; 256], &[part]).unwrap_err().0, "the context is lost since cuLaunchKernel gather");
}
