//! Runs `conform` and takes what it leaves behind.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use conform_harness::result::{CaseResult, Times, Verdict};
use tempfile::TempDir;

/// A small `mul_mat_id` of the smoke profile with random values: every element is compared within a bound.
pub(crate) const NORMAL: &str = "mul_mat_id/w=mxfp4,x=f32,e=8,u=2,m=63,n=33,k=96,t=8/route=skew,data=normal/v1-1";

/// One whose values are chosen so that every sum is exact.
pub(crate) const EXACT: &str = "mul_mat_id/w=mxfp4,x=f32,e=4,u=1,m=64,n=64,k=64/route=one,data=wide/v1-1";

/// A small `argsort` of the smoke profile, without ties.
pub(crate) const SORT: &str = "argsort/c=5,o=desc/data=sorted/v1-1";

/// A smaller one.
pub(crate) const SORT_3: &str = "argsort/c=3/data=distinct/v1-1";

/// A command line with its environment.
pub(crate) struct Conform(Command);

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// `conform` with these arguments, in an environment that changes nothing about devices, and without OpenCL, which
/// most tests have no use for and every start of a process would have to load.
pub(crate) fn conform<S: AsRef<str>>(args: impl IntoIterator<Item = S>) -> Conform {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conform"));
    command.args(args.into_iter().map(|a| a.as_ref().to_owned()));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CONFORM_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null()).env("OCL_ICD_VENDORS", "/nonexistent");
    Conform(command)
}

impl Conform {
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<Path>) -> Self {
        self.0.env(name, value.as_ref());
        self
    }

    /// With the device `fake-0`, which obeys these rules.
    pub(crate) fn fake(self, rules: &str) -> Self {
        self.env("CONFORM_FAKE", rules)
    }

    /// With whatever OpenCL this machine has.
    pub(crate) fn opencl(mut self) -> Self {
        self.0.env_remove("OCL_ICD_VENDORS");
        self
    }

    /// The command itself, for those who need its pipes.
    pub(crate) fn command(self) -> Command {
        self.0
    }

    /// Runs it to its end.
    pub(crate) fn end(mut self) -> Ended {
        Ended::of(self.0.output().unwrap())
    }
}

impl Ended {
    /// Whatever it was asked, it may not panic.
    pub(crate) fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let ended = Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) };
        assert!(!ended.stderr.contains("panicked") && !ended.stdout.contains("panicked"), "{ended:#?}");
        ended
    }

    /// Fails unless it ended with this code.
    #[track_caller]
    pub(crate) fn with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Its stdout, which is JSON and nothing else.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:#?}"))
    }
}

/// A run with its folder.
pub(crate) struct Run {
    pub(crate) ended: Ended,
    pub(crate) results: Vec<CaseResult>,
    dir: TempDir,
}

/// `conform run` with these arguments and rules, with its results in a folder of its own.
pub(crate) fn run<S: AsRef<str>>(rules: &str, args: impl IntoIterator<Item = S>) -> Run {
    let dir = TempDir::new().unwrap();
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let out = dir.path().join("out");
    let args: Vec<String> = args.into_iter().map(|a| a.as_ref().to_owned()).collect();
    let command = ["run", "--out", out.to_str().unwrap()].into_iter().chain(args.iter().map(String::as_str));
    let ended = conform(command).fake(rules).env("CONFORM_FAKE_STATE", state).end();
    Run { results: results(&out), ended, dir }
}

/// `conform run` of the cases with these ids, or prefixes, among the named ones of the smoke profile, on `fake-0`.
pub(crate) fn run_named(rules: &str, ids: &[&str]) -> Run {
    run(rules, [&["--cases", "0", "--device", "fake-0"], ids].concat())
}

impl Run {
    /// Fails unless it ended with this code.
    #[track_caller]
    pub(crate) fn with(self, code: i32) -> Self {
        assert_eq!(self.ended.code, Some(code), "{:#?}\n{:#?}", self.ended, self.results);
        self
    }

    /// Where its files are.
    pub(crate) fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    /// The verdict of each case.
    pub(crate) fn verdicts(&self) -> BTreeMap<&str, Verdict> {
        self.results.iter().map(|r| (r.case.as_str(), r.verdict)).collect()
    }

    /// The result of the only case with this id.
    #[track_caller]
    pub(crate) fn result(&self, id: &str) -> &CaseResult {
        let found: Vec<_> = self.results.iter().filter(|r| r.case == id).collect();
        assert_eq!(found.len(), 1, "{id} in {:#?}\n{:#?}", self.results, self.ended);
        found[0]
    }
}

/// The results in a run's folder; none if there is no such folder. Every line must be a result.
pub(crate) fn results(out: &Path) -> Vec<CaseResult> {
    let text = std::fs::read_to_string(out.join("results.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// What does not depend on the machine's load, in a fixed order.
pub(crate) fn timeless(results: &[CaseResult]) -> Vec<CaseResult> {
    let mut all: Vec<_> = results.iter().map(|r| CaseResult { times: Times::default(), ..r.clone() }).collect();
    all.sort_by(|a, b| (&a.case, &a.device).cmp(&(&b.case, &b.device)));
    all
}

/// The names of the checks that failed, but for those of the output as a whole: one wrong element may fail them too.
pub(crate) fn failed(result: &CaseResult) -> Vec<&str> {
    let of_elements = |name: &&str| !["scale", "bias", "noise"].contains(name);
    result.failed_checks().map(|c| c.name.as_str()).filter(of_elements).collect()
}

/// The ids that `conform list` prints.
pub(crate) fn list<S: AsRef<str>>(args: impl IntoIterator<Item = S>) -> Vec<String> {
    let args: Vec<String> = args.into_iter().map(|a| a.as_ref().to_owned()).collect();
    let listed = conform(["list"].into_iter().chain(args.iter().map(String::as_str))).end().with(0);
    assert_eq!(listed.stderr, "");
    listed.stdout.lines().map(str::to_owned).collect()
}

/// Fails with the first difference, which a comparison of long lists would bury.
#[track_caller]
pub(crate) fn assert_same<T: PartialEq + Debug>(left: &[T], right: &[T]) {
    for (l, r) in left.iter().zip(right) {
        assert_eq!(l, r);
    }
    assert_eq!(left.len(), right.len());
}
