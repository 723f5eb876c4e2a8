//! Steps that move bytes, on the devices of real builds.

use std::process::Command;

use conform_harness::backend::ggml::{DIR, GgmlDriver};
use conform_harness::backend::{Driver, Probe};

use super::builds::builds;
#[path = "../kernels/moves.rs"]
mod plans;

/// A driver lives in a process of its own, and reads its environment: so the test runs itself again. CPU devices alone:
/// what CI has of Vulkan takes too long to be there for every change.
#[test]
fn bytes_move() {
    for build in builds() {
        let output = again("moves::bytes_move_in_process", &build.dir).env("CONFORM_MOVES", "cpu").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{build}: {output:?}");
    }
}

fn again(test: &str, dir: &std::path::Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).env(DIR, dir);
    command
}

/// On every device of the build whose key has the text of `CONFORM_MOVES` in it.
#[test]
#[ignore = "run by bytes_move"]
fn bytes_move_in_process() {
    let (Probe::Found(found) | Probe::FoundPart { devices: found, .. }) = GgmlDriver.probe() else { panic!() };
    let wanted = std::env::var("CONFORM_MOVES").unwrap_or_default();
    let keys = found.into_iter().map(|i| i.key).filter(|k| k.contains(&wanted) && !k.contains('+'));
    // Nothing but weights lies in the buffers of a variant.
    let keys: Vec<String> = keys.collect();
    assert!(!keys.is_empty(), "no device has '{wanted}' in its key");
    for key in keys {
        plans::check(&mut *GgmlDriver.open(&key).unwrap());
        eprintln!("{key}: moved");
    }
}
