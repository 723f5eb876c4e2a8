//! The same question gets the same answer: from run to run, with any number of lanes, by replay, in parts.

use std::collections::BTreeSet;

use conform_harness::result::CaseResult;

use crate::conform::{assert_same, conform, list, run, timeless};

const SELECTION: [&str; 6] = ["--profile", "random", "--seed", "5", "--cases", "150"];

fn run_on(device: &str, rules: &str, more: &[&str]) -> Vec<CaseResult> {
    let run = run(rules, [&SELECTION[..], &["--device", device], more].concat());
    timeless(&run.results)
}

#[test]
fn runs_with_one_seed_are_equal_and_list_knows_their_cases() {
    let one = run_on("cpu", "", &["--jobs", "1"]);
    assert_same(&one, &run_on("cpu", "", &["--jobs", "1"]));
    assert_same(&one, &run_on("cpu", "", &["--jobs", "4"]));
    let ran: Vec<String> = one.into_iter().map(|r| r.case).collect();
    let mut listed = list(SELECTION);
    listed.sort();
    assert_same(&listed, &ran);
    assert_eq!(listed.iter().collect::<BTreeSet<_>>().len(), 150);
}

/// Failures too: those of a device that swaps tokens are as reproducible as anything.
#[test]
fn replay_reproduces_what_was_recorded() {
    let rules = "swap-tokens";
    let recorded = run_on("fake-0", rules, &["mul_mat_id/w=q4", "--jobs", "2"]);
    assert!(recorded.iter().any(CaseResult::is_unexpected) && !recorded.iter().all(CaseResult::is_unexpected));
    let ids = recorded.iter().map(|r| r.case.as_str());
    let replay = conform(["replay", "--json", "--device", "fake-0"].into_iter().chain(ids)).fake(rules).end().with(1);
    let replayed: Vec<CaseResult> = serde_json::from_value(replay.json()).unwrap();
    assert_same(&recorded, &timeless(&replayed));
    for r in recorded.iter().take(8) {
        let code = i32::from(r.is_unexpected());
        let replay = conform(["replay", &r.case, "--device", "fake-0"]).fake(rules).end().with(code);
        assert!(replay.stdout.starts_with(&format!("{} on fake-0\n", r.verdict.word().to_uppercase())), "{replay:#?}");
    }
}

/// `--like` tells one failure from another, as `git bisect run` needs it.
#[test]
fn replay_of_another_failure_blames_nobody() {
    let recorded = run_on("fake-0", "zeros", &["mul_mat_id/w=f16"]);
    let bad = recorded.iter().find(|r| r.is_unexpected()).unwrap();
    let replay =
        |like: &str| conform(["replay", &bad.case, "--device", "fake-0", "--like", like]).fake("zeros").end().code;
    assert_eq!(replay(&bad.signature().unwrap().to_string()), Some(1));
    assert_eq!(replay("mul_mat_id/w=f16:written"), Some(125));
    let other = |rules: &str| conform(["replay", &bad.case, "--device", "fake-0"]).fake(rules).end().code;
    assert_eq!(other(""), Some(0));
    assert_eq!(other("unsupported"), Some(125));
    assert_eq!(other("refuse-open"), Some(125));
    assert_eq!(other("crash"), Some(1));
}

#[test]
fn shards_partition_the_list() {
    let whole = list(SELECTION);
    let shards = [1, 2, 3].map(|k| list(SELECTION.into_iter().chain(["--shard", &format!("{k}/3")])));
    assert!(shards.iter().all(|s| s.len() > 20), "{:?}", shards.each_ref().map(Vec::len));
    let (mut parts, mut all) = (shards.concat(), whole);
    parts.sort();
    all.sort();
    assert_same(&parts, &all);
}

#[test]
fn the_full_profile_is_large_and_has_no_case_twice() {
    let ids = list(["--profile", "full"]);
    assert!(ids.len() >= 20_000, "{}", ids.len());
    let unique: BTreeSet<_> = ids.iter().collect();
    assert_eq!(unique.len(), ids.len());
}
