//! Sorted slots that are kept between steps, on the embedded device.

#![allow(clippy::unwrap_used, reason = "a test's helpers may panic like the test")]

#[path = "kernels/routing.rs"]
mod layers;

use conform_harness::backend::Driver;
use conform_harness::backend::cpu::CpuDriver;
use conform_harness::backend::routing::Reuse;

#[test]
fn slots_are_sorted_once_for_all_that_need_them() {
    layers::check(&mut *CpuDriver.open("cpu").unwrap());
}

/// What follows from a wrong rule is seen by the same tests.
#[test]
#[should_panic(expected = "sorted")]
fn a_rule_that_ignores_contents_is_seen() {
    layers::check(&mut *CpuDriver.open_reusing("cpu", Reuse::SameTensor).unwrap());
}
