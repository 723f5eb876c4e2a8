//! What a run makes of workers that die, hang, refuse or change their mind.

use std::process::Stdio;
use std::time::{Duration, Instant};

use conform_harness::result::{CaseResult, Verdict};
use tempfile::TempDir;

use crate::conform::{Ended, NORMAL, SORT, SORT_3, conform, failed, list, results, run, run_named};

#[test]
fn a_crash_that_is_not_repeated_is_an_incident() {
    let once = run_named("crash@c=5*1", &[SORT, SORT_3]).with(0);
    assert_eq!(once.verdicts(), [(SORT, Verdict::Pass), (SORT_3, Verdict::Pass)].into());
    let incidents: Vec<_> = once.result(SORT).incidents.iter().map(|i| i.kind.as_str()).collect();
    assert_eq!(incidents, ["signal"]);
    assert!(once.result(SORT_3).incidents.is_empty());
    assert!(once.ended.stdout.contains("1 deaths of workers that a fresh worker did not repeat"));
    assert!(once.ended.stderr.contains("note: signal on fake-0"), "{}", once.ended.stderr);
}

#[test]
fn a_crash_that_is_repeated_belongs_to_its_case() {
    for (rules, why) in [("crash@c=5", "SIGABRT"), ("segv@c=5", "SIGSEGV"), ("exit@c=5", "code 3")] {
        let always = run_named(rules, &[SORT, SORT_3, NORMAL]).with(1);
        let expected = [(SORT, Verdict::Crash), (SORT_3, Verdict::Pass), (NORMAL, Verdict::Pass)];
        assert_eq!(always.verdicts(), expected.into(), "{rules}");
        let crash = always.result(SORT);
        assert!(crash.gating && crash.checks.is_empty() && crash.incidents.is_empty(), "{crash:#?}");
        assert!(crash.why.as_deref().unwrap().contains(why), "{crash:#?}");
    }
}

#[test]
fn silence_beyond_the_patience_is_a_time_out() {
    let hang = run("hang@c=5", ["--cases", "0", "--device", "fake-0", "--timeout", "500ms", SORT, SORT_3]).with(1);
    assert_eq!(hang.verdicts(), [(SORT, Verdict::Timeout), (SORT_3, Verdict::Pass)].into());
    assert!(hang.result(SORT).gating);
}

#[test]
fn one_wrong_answer_is_one_too_many() {
    let lie = run_named("scale=1.02@mul_mat_id*1", &[NORMAL, SORT]).with(1);
    assert_eq!(lie.verdicts(), [(NORMAL, Verdict::Flaky), (SORT, Verdict::Pass)].into());
    let flaky = lie.result(NORMAL);
    assert!(flaky.gating, "{flaky:#?}");
    assert_eq!(failed(flaky), ["values"]);
    assert!(flaky.why.as_deref().unwrap().contains("'pass' in a fresh worker"), "{flaky:#?}");
}

#[test]
fn a_device_that_cannot_be_opened() {
    let refused = run_named("refuse-open", &[SORT]).with(1);
    assert!(refused.results.is_empty());
    assert!(refused.ended.stderr.contains("the fake driver was told to refuse"), "{}", refused.ended.stderr);
    assert!(refused.ended.stdout.contains("unavailable: "), "{}", refused.ended.stdout);
    // It was found: that it cannot be used is nothing to be expected, even where nobody asked for it by name.
    let beside = run("refuse-open", ["--cases", "0", SORT]).with(1);
    assert_eq!(beside.result(SORT).device, "cpu");
    assert!(beside.ended.stderr.contains("the fake driver was told to refuse"), "{}", beside.ended.stderr);
}

#[test]
fn a_device_that_supports_nothing() {
    let asked = run_named("unsupported", &[SORT, NORMAL]).with(1);
    assert_eq!(asked.verdicts(), [(SORT, Verdict::Unsupported), (NORMAL, Verdict::Unsupported)].into());
    assert!(asked.ended.stderr.contains("fake-0 was asked for and judged nothing"), "{}", asked.ended.stderr);
    run("unsupported", ["--cases", "0", SORT]).with(0);
    // One case it does is enough.
    run_named("unsupported@c=5", &[SORT, SORT_3]).with(0);
}

#[test]
fn no_new_case_after_enough_failures() {
    let few = run("zeros", ["--device", "fake-0", "--jobs", "1", "--max-failures", "3", "mul_mat_id/"]).with(1);
    assert_eq!(few.results.iter().filter(|r| r.is_unexpected()).count(), 3);
    assert_eq!(few.results.last().unwrap().verdict, Verdict::Fail);
}

/// A device that works, dies and then refuses to open: exit 3, and every other result is there.
#[test]
fn a_device_that_is_lost_costs_no_result() {
    let selection = ["--profile", "random", "--seed", "5", "--cases", "300", "argsort/"];
    let (ended, results) = lose_the_device(&selection, Stdio::piped());
    let ended = ended.with(3);
    let of = |device: &str| results.iter().filter(|r| r.device == device).collect::<Vec<_>>();
    let (cpu, fake) = (of("cpu"), of("fake-0"));
    assert!(cpu.iter().all(|r| r.verdict == Verdict::Pass));
    assert_eq!(cpu.len(), list(selection).len());
    let (last, before) = fake.split_last().unwrap();
    assert!(!before.is_empty() && before.iter().all(|r| r.verdict == Verdict::Pass), "{before:#?}");
    assert_eq!((last.verdict, last.gating), (Verdict::Wedged, true));
    let why = last.why.as_deref().unwrap();
    assert!(why.contains("was open before") && why.contains("on this case, worker"), "{why}");
    assert!(ended.stdout.contains("WEDGED: device 'fake-0'"), "{}", ended.stdout);
}

/// The codes rank 3 before 2: that the summary could not be written is the lesser news.
#[test]
fn a_lost_device_outranks_a_full_disk() {
    let selection = ["--profile", "random", "--seed", "5", "--cases", "300", "argsort/", "--json"];
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let (ended, _) = lose_the_device(&selection, full.into());
    assert!(ended.stderr.contains("cannot write to stdout"), "{ended:#?}");
    ended.with(3);
}

/// Runs on `cpu` and `fake-0` and breaks the latter as soon as it has worked: all turns of its rules are taken at first,
/// until the folder that counts them is emptied.
fn lose_the_device(selection: &[&str], stdout: Stdio) -> (Ended, Vec<CaseResult>) {
    let dir = TempDir::new().unwrap();
    let (state, out) = (dir.path().join("state"), dir.path().join("out"));
    std::fs::create_dir(&state).unwrap();
    for turn in 0..99 {
        (0..2).for_each(|rule| std::fs::write(state.join(format!("rule-{rule}-turn-{turn}")), "").unwrap());
    }
    let args = ["run", "--out", out.to_str().unwrap(), "--jobs", "1", "--device", "cpu", "--device", "fake-0"];
    let command = conform(args.iter().chain(selection));
    let mut command = command.fake("crash*9;refuse-open*99;slow=20").env("CONFORM_FAKE_STATE", &state).command();
    let child = command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    // The last line may be torn while it is written.
    let text = || std::fs::read_to_string(out.join("results.jsonl")).unwrap_or_default();
    while !text().contains("\"device\":\"fake-0\"") {
        assert!(started.elapsed() < Duration::from_secs(60), "no case was run");
        std::thread::sleep(Duration::from_millis(2));
    }
    // The fake may take a turn while the others are removed.
    std::fs::read_dir(&state).unwrap().for_each(|turn| std::fs::remove_file(turn.unwrap().path()).unwrap());
    (Ended::of(child.wait_with_output().unwrap()), results(&out))
}
