//! Workers are killed at random while they work, as a machine out of memory would, and no result suffers.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use conform_harness::result::CaseResult;
use tempfile::TempDir;

use crate::conform::{Ended, assert_same, conform, results, timeless};

const KILLS: u32 = 20;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn random_kills_change_no_result() {
    let (calm, disturbed) = (run(0), run(KILLS));
    let incidents = disturbed.iter().map(|r| r.incidents.len()).sum::<usize>();
    assert!(incidents > 0, "no kill met a worker at work");
    assert_same(&without_incidents(&calm), &without_incidents(&disturbed));
}

fn without_incidents(results: &[CaseResult]) -> Vec<CaseResult> {
    timeless(results).into_iter().map(|r| CaseResult { incidents: Vec::new(), ..r }).collect()
}

/// A run during which so many workers are killed. It must end with 0.
fn run(kills: u32) -> Vec<CaseResult> {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    let args = ["--profile", "random", "--seed", "7", "--cases", "300", "--device", "fake-0", "--jobs", "1"];
    let command = conform(["run", "--out", out.to_str().unwrap()].into_iter().chain(args));
    let mut command = command.fake("slow=3").command();
    let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut chance = Chance(0x9e37_79b9);
    for _ in 0..kills {
        // One result between two kills: a case may be killed often enough to be believed guilty.
        await_progress(&out.join("results.jsonl"));
        std::thread::sleep(chance.up_to(Duration::from_millis(10)));
        kill(await_worker(run.id()));
    }
    Ended::of(run.wait_with_output().unwrap()).with(0);
    results(&out)
}

/// Numbers that look random and are the same every time.
struct Chance(u32);

impl Chance {
    fn up_to(&mut self, most: Duration) -> Duration {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        most.mul_f64(f64::from(self.0) / f64::from(u32::MAX))
    }
}

/// Waits until the file has grown.
fn await_progress(file: &Path) {
    let len = || fs::metadata(file).map_or(0, |m| m.len());
    let before = len();
    await_some("a result", || (len() > before).then_some(()));
}

/// Waits until the run has a worker.
fn await_worker(run: u32) -> u32 {
    await_some("a worker", || workers_of(run).into_iter().next())
}

fn await_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// The live children of a process that are `conform worker`.
fn workers_of(parent: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_worker_of(*pid, parent).unwrap_or(false)).collect()
}

/// None if the process is gone.
fn is_worker_of(pid: u32, parent: u32) -> Option<bool> {
    let read = |what: &str| fs::read_to_string(format!("/proc/{pid}/{what}")).ok();
    let stat = read("stat")?;
    // The command's name, in parentheses, may hold anything; state and parent follow it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let (state, its_parent) = (fields.next()?, fields.next()?);
    let is_child = state != "Z" && its_parent == parent.to_string();
    Some(is_child && read("cmdline")?.split('\0').nth(1) == Some("worker"))
}

/// Through the shell's own `kill`: tests have no unsafe code. It may be dead already.
fn kill(pid: u32) {
    assert!(Command::new("sh").arg("-c").arg(format!("kill -9 {pid} 2>/dev/null; true")).status().unwrap().success());
}
