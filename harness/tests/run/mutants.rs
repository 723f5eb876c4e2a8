//! `conform mutants`: what it catches, what it must not claim, and its words.

use crate::conform::{Ended, conform};

fn mutants(args: &str) -> Ended {
    conform(["mutants"].into_iter().chain(args.split_whitespace())).end()
}

#[test]
fn faults_of_every_op_are_caught_and_told_with_what_the_habit_sees() {
    let ended = mutants("m1- m2- m5- m9- m10-ties a9- zeros-tensor --device cpu").with(0);
    for (mutant, check, habit) in [
        ("m1-once-per-token", "written", "missed"),
        ("m2-routing-by-shapes", "", "missed"),
        ("m2-routing-by-tensor", "", "missed"),
        ("m5-padding-is-slot-0", "", "caught"),
        ("m9-infinite-padding", "permutation", "missed"),
        ("m10-ties-displace", "best", "missed"),
        // What is stored beyond the last row lands in a guard.
        ("a9-rows-unchecked", "guards", "missed"),
        ("zeros-tensor", "exact", "caught"),
    ] {
        let line = ended.stdout.lines().find(|l| l.starts_with(mutant)).unwrap_or_else(|| panic!("{ended:#?}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words[1], words[5]), ("cpu", habit), "{line}");
        assert!(check.is_empty() || words[2] == check, "{line}");
        assert!((1..200).contains(&words[3].parse::<u64>().unwrap()), "{line}");
    }
    assert!(ended.stdout.contains("8 of 8 caught"), "{}", ended.stdout);
}

#[test]
fn a_kill_is_a_case_that_passes_without_the_fault() {
    let ended = mutants("b18 --device cpu --json").with(0);
    let line = &ended.json()["mutants"][0];
    assert_eq!(
        (&line["mutant"], &line["check"], &line["caught"]),
        (&"b18-direction-lost".into(), &"order".into(), &true.into())
    );
    let case = line["case"].as_str().unwrap();
    conform(["replay", case, "--device", "cpu"]).end().with(0);
    assert!(line["habit"]["missed"]["cases"].as_u64().unwrap() >= 10, "{line}");
}

#[test]
fn what_no_case_tells_is_not_caught() {
    let ended = mutants("m8- m1- --device cpu --cases 1").with(1);
    assert!(ended.stdout.contains("NOT CAUGHT m8-scale-by-shift on cpu"), "{}", ended.stdout);
    assert!(ended.stdout.contains("0 of 2 caught"), "{}", ended.stdout);
}

/// A device that is broken already fails on the mutant as well, which proves nothing.
#[test]
fn a_case_that_fails_without_the_fault_too_is_no_proof() {
    let command = conform(["mutants", "m1-once-per-token", "--device", "fake-0", "--cases", "40"]);
    let ended = command.fake("scale=1.02").end().with(1);
    assert!(ended.stdout.contains("NOT CAUGHT m1-once-per-token on fake-0"), "{}", ended.stdout);
    assert!(ended.stdout.contains("and did not pass without the fault either"), "{}", ended.stdout);
    // The same on a fake device that breaks no promise.
    conform(["mutants", "m1-once-per-token", "--device", "fake-0", "--cases", "40"])
        .fake("crash@nowhere")
        .end()
        .with(0);
}

#[test]
fn a_device_that_cannot_be_opened_catches_nothing() {
    let command = conform(["mutants", "m1-once-per-token", "--device", "fake-0"]).fake("refuse-open");
    let ended = command.end().with(1);
    assert!(ended.stdout.contains("(broken)") && ended.stdout.contains("told to refuse"), "{}", ended.stdout);
}

#[test]
fn mistakes_are_told() {
    for (args, words) in [
        ("m77", "'m77' selects no mutant; there are m1-once-per-token"),
        ("m1[", "is no glob"),
        ("m1- --device gpu-*", "no device matches 'gpu-*'"),
        ("a43-ids-overwritten --device cpu", "none of 1 mutants applies to a device here"),
        ("--cases 0", "0"),
    ] {
        let ended = mutants(args).with(2);
        assert!(ended.stdout.is_empty() && ended.stderr.contains(words), "{args}: {ended:#?}");
    }
}

#[test]
fn faults_of_opencl_kernels_are_caught() {
    let command = conform(["mutants", "b15", "b25", "m2-", "a9-", "--device", "opencl-pocl-*"]).opencl();
    let ended = command.end();
    if ended.code == Some(2) && ended.stderr.contains("no device matches") {
        let is_required = std::env::var("CONFORM_REQUIRE").unwrap_or_default().contains("opencl-pocl");
        assert!(!is_required, "{ended:#?}");
        return;
    }
    let ended = ended.with(0);
    assert!(ended.stdout.contains("5 of 5 caught"));
    // What is stored beyond the last row lands in a guard.
    let line = ended.stdout.lines().find(|line| line.starts_with("a9-rows-unchecked")).unwrap_or_default();
    assert!(line.split_whitespace().nth(2) == Some("guards"), "{line}");
}

/// Whose fault leaves results right is put into a device only by its whole name, and is not caught there.
#[test]
fn what_no_result_tells_is_left_out_where_nobody_watches() {
    let ended = mutants("u2- --device cpu").with(2);
    assert!(ended.stderr.contains("only a device that watches each access (Oclgrind) can tell"), "{ended:#?}");
    let pocl = |id| {
        let ended = conform(["mutants", id, "--device", "opencl-pocl-0", "--cases", "20"]).opencl().end();
        (!ended.stderr.contains("no device matches")).then_some(ended)
    };
    let Some(ended) = pocl("u2-") else { return };
    assert!(ended.with(2).stderr.contains("leaves results right"));
    let ended = pocl("u2-unwritten-keys").unwrap().with(1);
    assert!(ended.stdout.contains("NOT CAUGHT u2-unwritten-keys on opencl-pocl-0"), "{}", ended.stdout);
}

/// The same with somebody who watches, where Debian's package is installed.
#[test]
fn what_no_result_tells_is_seen_by_oclgrind() {
    const DRIVER: &str = "/usr/lib/oclgrind/liboclgrind-rt-icd.so";
    if !std::path::Path::new(DRIVER).exists() {
        return;
    }
    let command = conform(["mutants", "u3-race-in-order", "--device", "opencl-oclgrind-0", "--cases", "5", "--json"]);
    let ended = command.env("OCL_ICD_VENDORS", DRIVER).env("OCLGRIND_LOG", "/nowhere/elsewhere").end().with(0);
    let line = &ended.json()["mutants"][0];
    assert_eq!((&line["check"], &line["caught"]), (&"accesses".into(), &true.into()), "{line}");
    assert!(line["failure"].as_str().unwrap().contains("data race"), "{line}");
}
