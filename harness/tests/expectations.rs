//! `conform run --expect`, from the file to the exit code, on a device that is wrong on command.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use conform_harness::result::CaseResult;

/// The folder that CI takes its expectations from.
const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ci/expectations");

/// The results of q8_0 cases are scaled; the others are right.
const RULES: &str = "scale=1.02@w=q8_0";
const WRONG: &str = "mul_mat_id/w=q8_0,x=f32,e=4,*data=normal*";
const RIGHT: &str = "argsort/c=3";

struct Run {
    output: Output,
    results: Vec<CaseResult>,
}

/// Runs the named cases that the filters select, with these expectation files.
fn run(filters: &[&str], files: &[&Path]) -> Run {
    let out = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_conform"));
    command.arg("run").args(filters).args(["--device", "fake-0"]).arg("--out").arg(out.path());
    files.iter().for_each(|file| {
        command.arg("--expect").arg(file);
    });
    let output = command.env("CONFORM_FAKE", RULES).output().unwrap();
    let lines = std::fs::read_to_string(out.path().join("results.jsonl")).unwrap_or_default();
    Run { output, results: lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect() }
}

impl Run {
    fn exit(&self) -> i32 {
        self.output.status.code().unwrap()
    }

    fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }
}

/// A file with one entry for the wrong cases.
fn file(dir: &tempfile::TempDir, name: &str, entry: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, format!("[[expect]]\ndevice = 'fake-0'\nreason = 'told to scale'\n{entry}\n")).unwrap();
    path
}

#[test]
fn every_file_of_the_repository_can_be_read() {
    let files: Vec<_> = std::fs::read_dir(FILES).unwrap().map(|f| f.unwrap().path()).collect();
    assert!(!files.is_empty());
    for file in files {
        assert!(!conform_harness::expect::read(&file).unwrap().is_empty(), "{}", file.display());
    }
}

#[test]
fn a_known_failure_is_counted_and_does_not_fail_the_run() {
    let run = run(&[WRONG, RIGHT], &[&Path::new(FILES).join("fake.toml")]);
    let text = run.stdout();
    assert_eq!(run.exit(), 0, "{text}");
    let expected = run.results.iter().filter(|r| r.expected.is_some()).count();
    assert!(expected > 0 && run.results.iter().all(|r| r.expected.is_some() == r.verdict.is_bad()), "{text}");
    assert!(text.contains(&format!("{expected} expected and 0 unexpected results")), "{text}");
    assert!(
        text.contains(&format!("{expected} × fail of 'values', 'scale', 'bias': the fake driver was told to scale")),
        "{text}"
    );
    assert!(!text.contains("FAIL on"), "what is known is not described: {text}");
}

#[test]
fn without_an_expectation_the_same_run_fails() {
    let run = run(&[WRONG, RIGHT], &[]);
    assert_eq!(run.exit(), 1);
    assert!(run.results.iter().all(|r| r.expected.is_none() && r.unexpected.is_none()));
    assert!(!run.stdout().contains("known results"));
}

#[test]
fn an_expected_failure_that_passes_fails_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let stale = file(&dir, "stale.toml", "case = 'argsort/c=3/'\nverdict = 'fail'");
    let run = run(&[RIGHT], &[&stale]);
    let text = run.stdout();
    assert_eq!(run.exit(), 1, "{text}");
    assert!(text.contains("PASS on fake-0") && text.contains("but it passes: remove the expectation"), "{text}");
    assert!(run.results.iter().all(|r| r.unexpected.is_some() == r.case.starts_with("argsort/c=3/")));
}

#[test]
fn another_failure_than_expected_fails_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let other = file(&dir, "other.toml", &format!("case = '{WRONG}'\nverdict = 'fail'\ncheck = 'inputs'"));
    let run = run(&[WRONG], &[&other]);
    assert_eq!(run.exit(), 1);
    assert!(run.stdout().contains("expected fail of 'inputs', but 'values' fails"), "{}", run.stdout());
}

#[test]
fn the_first_file_decides_and_one_that_met_nothing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let rule = file(&dir, "rule.toml", &format!("case = '{WRONG}'\nverdict = 'fail'"));
    let shadowed = file(&dir, "shadowed.toml", &format!("case = '{WRONG}'\nverdict = 'crash'"));
    let run = run(&[WRONG], &[&rule, &shadowed]);
    assert_eq!(run.exit(), 0, "{}", run.stdout());
    let unmet = format!("met no result of this run ({}, entry 1)", shadowed.display());
    assert!(run.stdout().contains(&unmet), "{}", run.stdout());
}

#[test]
fn one_entry_may_name_several_cases() {
    let dir = tempfile::tempdir().unwrap();
    let cases = format!("case = ['{WRONG}', 'top_k/c=9', 'top_k/c=8']");
    let several = file(&dir, "several.toml", &format!("{cases}\nverdict = 'fail'"));
    let run = run(&[WRONG], &[&several]);
    assert_eq!(run.exit(), 0, "{}", run.stdout());
    let unmet = format!("2 of 3 patterns met no result, first top_k/c=9 ({}, entry 1)", several.display());
    assert!(run.stdout().contains(&unmet), "{}", run.stdout());
}

#[test]
fn a_bad_file_is_a_configuration_error_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let bad = file(&dir, "bad.toml", "case = 'argsort'\nverdict = 'fail'\nchek = 'order'");
    let run = run(&[RIGHT], &[&bad]);
    let stderr = String::from_utf8_lossy(&run.output.stderr).into_owned();
    assert_eq!((run.exit(), stderr.lines().count()), (2, 1), "{stderr}");
    assert!(stderr.contains("bad.toml, entry 1: unknown key 'chek'"), "{stderr}");
    assert!(run.results.is_empty());
}

#[test]
fn passes_of_what_may_fail_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let either = file(&dir, "either.toml", "case = 'argsort/c=3/'\nverdict = ['pass', 'crash']");
    let run = run(&[RIGHT], &[&either]);
    let text = run.stdout();
    assert_eq!(run.exit(), 0, "{text}");
    assert!(text.contains(" of them passed\n") && text.contains("all of them pass: remove or narrow it"), "{text}");
}
