//! Planted faults: each kind of wrong answer is found, by the right check, and fails the run.

use conform_cases::profile::Profile;
use conform_harness::result::Verdict;

use crate::conform::{EXACT, NORMAL, SORT, conform, failed, run_named};

/// A row: what the device does, the only case, and the checks that must fail, and no others.
type Fault = (&'static str, &'static str, &'static [&'static str]);

/// Runs the case with the fault, then without.
#[track_caller]
fn is_found((rules, case, checks): Fault) {
    let faulty = run_named(rules, &[case]).with(1);
    let result = faulty.result(case);
    assert_eq!((result.verdict, result.gating), (Verdict::Fail, true), "{rules}: {result:#?}");
    assert_eq!(failed(result), checks, "{rules}: {result:#?}");
    for words in [case, checks[0], "1 unexpected results", &format!("conform replay {case} --device fake-0")] {
        assert!(faulty.ended.stdout.contains(words), "{rules}: '{words}' is not in {}", faulty.ended.stdout);
    }
    let healthy = run_named("", &[case]).with(0);
    assert_eq!(healthy.result(case).verdict, Verdict::Pass);
}

/// A shift of 2 % is a wrong scale; one of 0.2 % hides below the tolerances that backends' own tests allow.
#[test]
fn scaled_outputs() {
    is_found(("scale=1.02", NORMAL, &["values"]));
    is_found(("scale=1.002", NORMAL, &["values"]));
    is_found(("scale=1.002", EXACT, &["exact"]));
}

#[test]
fn zeros_returned() {
    is_found(("zeros", NORMAL, &["values"]));
    is_found(("zeros", EXACT, &["exact"]));
    is_found(("zeros", SORT, &["permutation"]));
}

/// One wrong element among so many that no average would show it.
#[test]
fn one_element_of_the_largest_case() {
    let cases = Profile::Smoke.cases(Profile::FIXED_SEED, 0);
    let of_values = cases.filter(|c| c.id().starts_with("mul_mat_id/"));
    let largest = of_values.max_by_key(|c| c.body().cost().operations).unwrap().id();
    for rules in ["zero-one", "negate-one"] {
        let result = run_named(rules, &[&largest]).with(1);
        let result = result.result(&largest);
        assert_eq!((result.verdict, result.gating), (Verdict::Fail, true), "{rules}: {result:#?}");
        assert_eq!(failed(result), ["values"], "{rules}: {result:#?}");
        let what = &result.failed_checks().next().unwrap().failure().unwrap().what;
        assert!(what.starts_with("1 of "), "{what}");
    }
    assert_eq!(run_named("", &[&largest]).with(0).result(&largest).verdict, Verdict::Pass);
}

/// Memory that a step has no business with: behind the end of its own, and another tensor's.
#[test]
fn memory_beyond_ones_own() {
    const BESIDE: &str = "mul_mat_id/w=mxfp4,x=f32,e=5,u=2,m=65,n=33,k=96/route=shuffle,data=normal,seq=beside/v1-1";
    is_found(("guard-hit", BESIDE, &["guards"]));
    is_found(("guard-hit", SORT, &["guards"]));
    is_found(("touch-input", BESIDE, &["neighbours"]));
}

#[test]
fn one_element_negated() {
    is_found(("negate-one", NORMAL, &["values"]));
    is_found(("negate-one", EXACT, &["exact"]));
}

#[test]
fn rows_of_neighbouring_tokens_swapped() {
    is_found(("swap-tokens", NORMAL, &["values"]));
    is_found(("swap-tokens", "argsort/c=33,r=5/data=inf/v1-1", &["order"]));
}

#[test]
fn two_indices_exchanged() {
    is_found(("swap-indices", SORT, &["order"]));
}

#[test]
fn one_element_never_written() {
    is_found(("unwritten", NORMAL, &["written"]));
    is_found(("unwritten", SORT, &["written"]));
}

#[test]
fn an_input_modified() {
    is_found(("touch-input", NORMAL, &["inputs"]));
    is_found(("touch-input", SORT, &["inputs"]));
}

#[test]
fn a_nan_where_a_number_belongs() {
    is_found(("nan", NORMAL, &["class"]));
    is_found(("nan", SORT, &["permutation"]));
}

/// One low bit, in the second of two runs: far inside of every bound, and yet not repeatable.
#[test]
fn a_second_run_that_differs() {
    is_found(("flip", NORMAL, &["repeat"]));
    // What comes once in five runs is not seen in two.
    run_named("flip-fifth", &[NORMAL]).with(0);
    let replay =
        |repeat| conform(["replay", NORMAL, "--device", "fake-0", "--repeat", repeat]).fake("flip-fifth").end();
    replay("4").with(0);
    let seen = replay("5").with(1);
    assert!(seen.stdout.contains("repeat    1 of "), "{}", seen.stdout);
}

#[test]
fn a_device_error_from_a_case_that_was_accepted() {
    is_found(("error", NORMAL, &["support"]));
    is_found(("error", SORT, &["support"]));
}

/// An answer to another question is no answer: the worker is not to be trusted, which is a crash.
#[test]
fn an_answer_for_the_wrong_case() {
    let faulty = run_named("wrong-case", &[NORMAL]).with(1);
    let result = faulty.result(NORMAL);
    assert_eq!((result.verdict, result.gating), (Verdict::Crash, true), "{result:#?}");
    assert!(result.checks.is_empty(), "{result:#?}");
    let why = result.why.as_deref().unwrap();
    assert!(why.contains("broke the protocol") && why.contains(NORMAL), "{why}");
    assert!(faulty.ended.stdout.contains(why), "{}", faulty.ended.stdout);
    run_named("", &[NORMAL]).with(0);
}

/// A rule for some cases leaves the others alone: what is reported is what is wrong.
#[test]
fn only_the_faulty_cases_fail() {
    let mixed = run_named("scale=1.02@data=wide", &[NORMAL, EXACT, SORT]).with(1);
    assert_eq!(mixed.verdicts(), [(SORT, Verdict::Pass), (NORMAL, Verdict::Pass), (EXACT, Verdict::Fail)].into());
}
