//! CUDA: kernels on the first device of this machine, and what can be tested without one.
//!
//! Without a device the kernels' tests print why and pass, unless `CONFORM_REQUIRE` names cuda.

#![allow(clippy::unwrap_used, reason = "a test's helpers may panic like the test")]

mod compile;
mod fake;
mod host;
#[path = "../kernels/mod.rs"]
mod kernels;

use conform_cases::plan::Order;
use conform_harness::backend::cuda::Cuda;
use conform_harness::backend::{Device, Driver, LoadError, Probe};

use kernels::{moves, routing, sorts};

/// Tensor cores may truncate 50 times in a block of 32, by two roundings each.
const MORE_ROUNDINGS: f64 = 100.0;

/// Additions that join the blocks of one row in gemv: four lane groups take every fourth.
fn joins(k: usize) -> f64 {
    (k as f64 / 128.0).ceil()
}

fn is_required() -> bool {
    std::env::var("CONFORM_REQUIRE").unwrap_or_default().contains("cuda")
}

fn device() -> Option<Box<dyn Device>> {
    match Cuda.probe() {
        Probe::Found(devices) | Probe::FoundPart { devices, .. } => Some(Cuda.open(&devices[0].key).unwrap()),
        Probe::Missing(why) => {
            assert!(!is_required(), "CUDA is required: {why}");
            println!("no CUDA device: {why}");
            None
        }
    }
}

#[test]
fn too_large_is_unsupported() {
    let Some(mut device) = device() else { return };
    let limit: usize = device.info().properties["global_mem"].parse().unwrap();
    let plan = sorts::plan([1, limit / 4 + 1, 1, 1], false, Order::Asc);
    let Err(LoadError::Unsupported(why)) = device.load(&plan) else { panic!("loaded") };
    assert!(why.contains("with x the plan needs") && why.contains(&limit.to_string()), "{why}");
    assert!(device.run(0..1).is_err() && device.write(0, 0, &[0]).is_err(), "nothing is loaded");
}

#[test]
fn slots_are_sorted_once_for_all_that_need_them() {
    if let Some(mut device) = device() {
        routing::check(&mut *device);
    }
}

#[test]
fn bytes_move() {
    let Some(mut device) = device() else { return };
    moves::check(&mut *device);
}
