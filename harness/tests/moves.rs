//! Bytes that plans move: on the embedded device, and on one that lies about it, which must be seen.

#![allow(clippy::unwrap_used, reason = "a test's helpers may panic like the test")]

#[path = "kernels/moves.rs"]
mod plans;

use std::process::Command;

use conform_harness::backend::Driver;
use conform_harness::backend::cpu::CpuDriver;
use conform_harness::backend::fake::DRIVER;

#[test]
fn bytes_move() {
    plans::check(&mut *CpuDriver.open("cpu").unwrap());
}

/// The fake driver reads its environment once: so the test runs itself again for each lie.
#[test]
fn every_lie_is_seen() {
    let lies = ["none", "late", "long", "short", "dense", "fails"].map(|lie| format!("upload-{lie}"));
    for (lie, is_lie) in lies.iter().map(|l| (&**l, true)).chain([("fetch-stale", true), ("", false)]) {
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", "on_the_fake_device", "--ignored", "--nocapture"]).env("CONFORM_FAKE", lie);
        let output = test.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("1 passed"), "{lie}: {output:?}");
        assert_eq!(text.contains("seen in "), is_lie, "{lie}: {text}");
        assert_eq!(text.contains("lost half-way"), lie == "upload-fails", "{lie}: {text}");
    }
}

#[test]
#[ignore = "run by every_lie_is_seen"]
fn on_the_fake_device() {
    let seen: Vec<String> = plans::plans()
        .filter_map(|(seed, plan)| plans::compare(&mut *DRIVER.open("fake-0").unwrap(), &plan, seed).err())
        .collect();
    if let Some(first) = seen.first() {
        println!("seen in {} plans, first: {first}", seen.len());
    }
}
