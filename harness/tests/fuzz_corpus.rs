//! The corpus of the fuzzers, replayed: inputs of every kind that a reader takes, and those that once broke one; and
//! inputs that are too large for a fuzzer to find.
#![allow(clippy::unwrap_used, reason = "a test's helpers may panic like the test")]

#[path = "../fuzz/targets.rs"]
mod targets;

use std::path::Path;

use conform_cases::state::case_type;
use conform_cases::state::memory::{Memory, What};
use conform_cases::state::plain::PlainMemory;
use conform_cases::state::stages::Stages;
use targets::Target;

#[global_allocator]
static MEMORY: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

const TARGETS: [(&str, Target); 3] =
    [("state_blob", targets::state_blob), ("case_id", targets::case_id), ("results", targets::results)];

/// One test, since what is in use is counted for all threads together.
#[test]
fn every_input_is_read_or_refused() {
    for (name, target) in TARGETS {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/fuzz").join(name);
        let mut count = 0;
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            target(&MEMORY, &std::fs::read(&path).unwrap());
            count += 1;
        }
        assert!(count >= 20, "{}: only {count} inputs", dir.display());
    }
    for (name, input) in large() {
        for (target_name, target) in TARGETS {
            println!("{name}, of {} bytes, for {target_name}", input.len());
            target(&MEMORY, &input);
        }
    }
    counts_are_not_believed();
    let greedy = || targets::bounded(&MEMORY, b"abc", || drop(std::hint::black_box(vec![1u8; 3 << 20])));
    assert!(std::panic::catch_unwind(greedy).is_err(), "three megabytes for three bytes are noticed");
}

/// Megabytes of what takes more memory than it has bytes: small things in lists, and keys.
fn large() -> Vec<(&'static str, Vec<u8>)> {
    const MANY: usize = 200_000;
    let keys = (0..MANY).map(|i| format!("a{i}=1")).collect::<Vec<_>>().join(",");
    let result = |inside: String| {
        let end = r#""times":{"generate":0,"oracle":0,"load":0,"upload":0,"compute":0,"read":0,"judge":0}}"#;
        format!(r#"{{"case":"a","device":"b","verdict":"pass","gating":true,{inside},{end}"#) + "\n"
    };
    let list = |what: &str| vec![what; MANY].join(",");
    let checks = |check: &str| result(format!(r#""checks":[{}]"#, list(check)));
    // Session and sequence files of the first memory.
    let tokens = |first: u8, head: [u32; 2]| {
        let numbers = [head[0], head[1], MANY as u32].into_iter().chain(0..MANY as u32);
        [vec![first, 0], numbers.flat_map(u32::to_le_bytes).collect()].concat()
    };
    vec![
        ("slashes", vec![b'/'; 2 << 20]),
        ("commas", [&b"argsort/"[..], &vec![b','; 2 << 20], b"/data=ties/v1-1"].concat()),
        ("keys", format!("argsort/{keys}/data=ties/v1-1").into_bytes()),
        ("lines", vec![b'\n'; 2 << 20]),
        ("checks", checks(r#"{"name":"","status":"passed"}"#).into_bytes()),
        ("unknown keys of a check", checks(&format!(r#"{{"name":"","status":"passed",{}}}"#, "\"a\":1")).into_bytes()),
        ("a list in a check", checks_of_one(&list("1"), result)),
        (
            "incidents",
            result(format!(r#""checks":[],"incidents":[{}]"#, list(r#"{"kind":"","detail":""}"#))).into_bytes(),
        ),
        ("brackets", vec![b'['; 2 << 20]),
        (
            "devices",
            format!(
                r#"{{"schema":1,"conform":"0","profile":"smoke","seed":1,"devices":[{}]}}"#,
                list(r#"{"key":"","name":"","driver":""}"#)
            )
            .into_bytes(),
        ),
        ("tokens of a session", tokens(24, [0x6767_736e, 9])),
        ("tokens of a sequence", tokens(32, [0x6767_7371, 2])),
    ]
}

/// A line whose only check has a long list that nobody knows.
fn checks_of_one(list: &str, result: impl Fn(String) -> String) -> Vec<u8> {
    result(format!(r#""checks":[{{"name":"","status":"passed","a":[{list}]}}]"#)).into_bytes()
}

/// A few bytes that say of themselves that they are the cells of a large memory take no more than the memory's own
/// tables of cells, which a load makes anew.
fn counts_are_not_believed() {
    for (op, params, blob) in [
        ("kv_state", "c=1000000,l=1,k=1,v=1", &[1u32, 1_000_000][..]),
        ("recurrent_state", "c=65536,l=1,r=1,s=1", &[65_536]),
    ] {
        let shape = case_type::shape(op, params).unwrap();
        let (mut memory, mut device) = (Memory::new(&shape, Stages::default()), PlainMemory::default());
        let before = MEMORY.current_usage();
        let tables = memory.clone();
        let tables_bytes = MEMORY.current_usage() - before;
        drop(tables);
        let blob: Vec<u8> = blob.iter().flat_map(|n| n.to_le_bytes()).collect();
        // As if the tables were of the input, a tenth each.
        let justified = [blob.clone(), vec![0; tables_bytes / 10]].concat();
        let answer = targets::bounded(&MEMORY, &justified, || memory.load(What::All, false, &blob, &mut device));
        assert!(answer.unwrap_err().to_string().contains("needs 4 bytes, the blob has 0 more"));
    }
}
