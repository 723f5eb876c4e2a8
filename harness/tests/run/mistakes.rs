//! Mistakes of people: an exit code, one line that names the mistake, and nothing else happens.

use std::fs;

use crate::conform::{SORT, conform, run};

/// Code of a usage or configuration error, and the same of `replay`, which `git bisect run` must not take for bad.
const USAGE: i32 = 2;
const REPLAY_USAGE: i32 = 129;
const REPLAY_UNTESTABLE: i32 = 125;

/// Fails unless the command line ends with the code, says nothing on stdout, and these words on stderr; in one line
/// where the error is our own and not the argument parser's.
#[track_caller]
fn is_refused(code: i32, line: &str, words: &str) {
    let ended = conform(line.split_whitespace()).end().with(code);
    assert_eq!(ended.stdout, "", "{line}");
    assert!(ended.stderr.contains(words), "{line}: '{words}' is not in {}", ended.stderr);
    if ended.stderr.starts_with("conform: ") {
        assert_eq!(ended.stderr.trim_end().lines().count(), 1, "{line}: {}", ended.stderr);
    } else {
        assert!(ended.stderr.starts_with("error: "), "{line}: {}", ended.stderr);
    }
}

/// Ids that are none, and what is said of them.
const BAD_IDS: [(&str, &str); 11] = [
    ("argsort/zz=1,c=3/data=ties/v1-1", "unknown key 'zz'; known here: c, r, r2"),
    ("argsort/c=0/data=ties/v1-1", "c=0: must be at least 1"),
    ("argsort/c=3/data=nothing/v1-1", "nothing"),
    ("argsort/c=3/data=ties", "argsort/c=3/data=ties"),
    ("argsort/c=3/data=ties/v9-1", "v9"),
    ("softmax/c=3/data=ties/v1-1", "softmax"),
    ("argsort/c=3,r=1/data=ties/v1-1", "write argsort/c=3/data=ties/v1-1"),
    ("argsort/c=03/data=ties/v1-1", "c=03"),
    (
        "mul_mat_id/x=f32,w=f16,e=1,u=1,m=8,n=16,k=1/route=shuffle,data=normal/v1-1",
        "write mul_mat_id/w=f16,x=f32,e=1,u=1,m=8,n=16,k=1/route=shuffle,data=normal/v1-1",
    ),
    (
        "mul_mat_id/w=q8_0,x=f32,e=1,u=1,m=8,n=16,k=33/route=shuffle,data=normal/v1-1",
        "k=33: q8_0 needs a multiple of 32",
    ),
    ("mul_mat_id/w=f16,x=f32,e=2,u=3,m=8,n=16,k=1/route=shuffle,data=normal/v1-1", "u=3"),
];

#[test]
fn ids_that_are_none() {
    for (id, words) in BAD_IDS {
        is_refused(USAGE, &format!("show {id}"), words);
        is_refused(REPLAY_USAGE, &format!("replay {id} --device cpu"), words);
    }
}

#[test]
fn selections_of_nothing() {
    for command in ["list", "run --device cpu"] {
        for (args, words) in [
            ("mul_mat_id/q", "filter 'mul_mat_id/q' selects none of the"),
            ("argsort *w=q9*", "filter '*w=q9*' selects none of the"),
            ("--profile random --cases 0", "no case is selected out of 0"),
            ("argsort/c=1/ --cases 0 --shard 3/1000", "no case is selected"),
            ("--profile bogus", "known: smoke, full, random, corpus"),
            ("a[", "'a[' is no glob"),
            ("--shard 4/3", "'4/3' is no K/N"),
            ("--shard 0/3", "'0/3' is no K/N"),
            ("--shard 1", "'1' is no K/N"),
            ("--seed -1", "-1"),
            ("--seed x", "'x'"),
            ("--cases many", "'many'"),
        ] {
            is_refused(USAGE, &format!("{command} {args}"), words);
        }
    }
}

/// Where cases are drawn without end, only the time can tell that none will come.
#[test]
fn a_selection_of_nothing_without_end() {
    let endless = |time, filter| ["run", "--profile", "random", "--time", time, filter];
    let ended = conform(endless("300ms", "nothing")).end().with(USAGE);
    assert!(ended.stderr.contains("no case that the filters select was drawn within --time"), "{ended:#?}");
    let some = endless("1h", "argsort/").into_iter().chain(["--device", "fake-0", "--max-failures", "1"]);
    conform(some).fake("zeros").end().with(1);
}

#[test]
fn devices_that_are_not_there() {
    is_refused(USAGE, "run --device nothing-* argsort/c=3", "no device matches 'nothing-*'; found: cpu");
    is_refused(USAGE, "run --device cpu --device nothing argsort/c=3", "no device matches 'nothing'");
    is_refused(USAGE, "run --device a[ argsort/c=3", "'a[' is no glob");
    is_refused(REPLAY_UNTESTABLE, &format!("replay {SORT} --device nothing"), "no device matches 'nothing'");
    is_refused(REPLAY_USAGE, &format!("replay {SORT} --device a["), "'a[' is no glob");
}

#[test]
fn arguments_that_make_no_sense() {
    for (line, words) in [
        ("run --jobs 0", "'0'"),
        ("run --max-failures 0", "'0'"),
        ("run --time xyz", "write for example 90s or 30m"),
        ("run --timeout 5", "write for example 90s or 30m"),
        ("run --bogus", "--bogus"),
        ("bogus", "unrecognized subcommand 'bogus'"),
        ("show", "required"),
    ] {
        is_refused(USAGE, line, words);
    }
    is_refused(REPLAY_USAGE, &format!("replay {SORT}"), "--device");
    is_refused(REPLAY_USAGE, "replay --device cpu", "<CASE>");
    is_refused(REPLAY_USAGE, &format!("replay {SORT} --device cpu --bogus"), "--bogus");
    // Alone it prints its help, which is no result either.
    let alone = conform::<&str>([]).end().with(USAGE);
    assert!(alone.stdout.is_empty() && alone.stderr.contains("Usage: conform"), "{alone:#?}");
}

#[test]
fn folders_that_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "mine").unwrap();
    let below = file.join("below");
    is_refused(USAGE, &format!("run {SORT} --device cpu --out {}", below.display()), "--out: cannot create");
    is_refused(USAGE, &format!("run {SORT} --device cpu --out {}", file.display()), "--out: cannot create");
    is_refused(USAGE, &format!("show {SORT} --dump {}", below.display()), "--dump: cannot write");
    assert_eq!(fs::read_to_string(file).unwrap(), "mine");
}

#[test]
fn results_are_never_overwritten() {
    let first = run("", [SORT, "--device", "cpu"]).with(0);
    let files = || ["results.jsonl", "run.json"].map(|f| fs::read_to_string(first.out().join(f)).unwrap());
    let before = files();
    is_refused(USAGE, &format!("run argsort --device cpu --out {}", first.out().display()), "exists already");
    assert_eq!(files(), before);
}

/// A driver that was told nonsense is a mistake in the environment.
#[test]
fn rules_that_the_fake_driver_does_not_know() {
    for (rules, why) in [
        ("explode", "there is no behaviour 'explode'"),
        ("crash*x", "'x' is no number of times"),
        ("slow", "slow needs milliseconds"),
        ("scale=", "scale needs a factor"),
        ("zeros=1", "takes no value"),
    ] {
        for command in [&["devices"][..], &["run", SORT], &["run", SORT, "--device", "fake-0"]] {
            let ended = conform(command).fake(rules).end().with(USAGE);
            assert!(ended.stdout.is_empty() && ended.stderr.contains(why), "{ended:#?}");
            assert!(ended.stderr.starts_with(&format!("conform: CONFORM_FAKE='{rules}': ")), "{ended:#?}");
            assert_eq!(ended.stderr.lines().count(), 1, "{ended:#?}");
        }
    }
}
