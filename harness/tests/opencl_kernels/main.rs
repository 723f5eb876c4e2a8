//! The OpenCL kernels against naive host loops, on the first OpenCL device of this machine.
//!
//! Without a device the tests print why and pass, unless `CONFORM_REQUIRE` names opencl.

#![allow(clippy::unwrap_used, reason = "a test's helpers may panic like the test")]

mod forms;
#[path = "../kernels/mod.rs"]
mod kernels;

use conform_cases::plan::Order;
use conform_harness::backend::opencl::{OpenCl, SOURCES};
use conform_harness::backend::{Device, Driver, LoadError, Probe};

use kernels::{moves, routing, sorts};

/// All sums are rounded to nearest, k times.
const MORE_ROUNDINGS: f64 = 0.0;

/// Additions that join the blocks of one row in gemv: in any order where there are sub-groups.
fn joins(k: usize) -> f64 {
    (k as f64 / 32.0).ceil()
}

fn device() -> Option<Box<dyn Device>> {
    match OpenCl.probe() {
        Probe::Found(devices) | Probe::FoundPart { devices, .. } => Some(OpenCl.open(&devices[0].key).unwrap()),
        Probe::Missing(why) => {
            let required = std::env::var("CONFORM_REQUIRE").unwrap_or_default();
            assert!(!required.contains("opencl"), "OpenCL is required: {why}");
            println!("no OpenCL device: {why}");
            None
        }
    }
}

#[test]
fn too_large_is_unsupported() {
    let Some(mut device) = device() else { return };
    let limit: usize = device.info().properties["max_alloc"].parse().unwrap();
    let plan = sorts::plan([1, limit / 4 + 1, 1, 1], false, Order::Asc);
    let Err(LoadError::Unsupported(why)) = device.load(&plan) else { panic!("loaded") };
    assert!(why.contains("CL_DEVICE_MAX_MEM_ALLOC_SIZE") && why.contains(&limit.to_string()), "{why}");
    assert!(device.run(0..1).is_err() && device.write(0, 0, &[0]).is_err(), "nothing is loaded");
}

#[test]
fn a_kernel_that_does_not_compile_is_one_line() {
    let Probe::Found(devices) = OpenCl.probe() else { return };
    let mut sources = SOURCES.to_vec();
    let gemm = sources.iter_mut().find(|s| s.name == "gemm").unwrap();
    gemm.text = gemm.text.replace("float sum[TILE_SLOTS]", "flaot sum[TILE_SLOTS]").into();
    let why = OpenCl.open_with(&devices[0].key, &sources).err().unwrap().0;
    assert!(why.starts_with("clBuildProgram gemm.cl: CL_BUILD_PROGRAM_FAILURE") && !why.contains('\n'), "{why}");
    assert!(why.contains("flaot"), "{why}");
}

#[test]
fn slots_are_sorted_once_for_all_that_need_them() {
    if let Some(mut device) = device() {
        routing::check(&mut *device);
    }
}

/// On every OpenCL device: how an implementation queues and cuts transfers is its own.
#[test]
fn bytes_move() {
    let (Probe::Found(devices) | Probe::FoundPart { devices, .. }) = OpenCl.probe() else { return };
    for info in devices {
        moves::check(&mut *OpenCl.open(&info.key).unwrap());
        moves::check(&mut *OpenCl.open_gathering(&info.key).unwrap());
    }
}
