//! What commands print and write: JSON alone with `--json`, arrays that numpy reads, and no panic when nobody listens.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::conform::{Conform, Ended, NORMAL, SORT, conform};

#[test]
fn json_is_json_and_nothing_else() {
    let devices = conform(["devices", "--json"]).fake("").end().with(0).json();
    assert_eq!((&devices["found"][0]["key"], &devices["found"][1]["key"]), (&"cpu".into(), &"fake-0".into()));
    let list = conform(["list", "--json", "--cases", "0", SORT]).end().with(0).json();
    assert_eq!(list, serde_json::json!([SORT]));
    let show = conform(["show", "--json", NORMAL]).end().with(0).json();
    assert_eq!((&show["case"], &show["plan"]["case"]), (&NORMAL.into(), &NORMAL.into()));
    // Whatever happens during a run: crashes, failures and chatter of the driver are told elsewhere.
    for (rules, code) in [("", 0), ("zeros", 1), ("crash", 1), ("chatter", 0), ("refuse-open", 1)] {
        let run = conform(["run", "--json", "--device", "fake-0", SORT]).fake(rules).end().with(code).json();
        assert!(run["devices"]["fake-0"].is_object(), "{rules}: {run}");
        let code = if rules == "refuse-open" { 125 } else { code };
        let replay = conform(["replay", "--json", "--device", "fake-0", SORT]).fake(rules).end().with(code).json();
        assert_eq!(replay.as_array().unwrap().len(), usize::from(rules != "refuse-open"), "{rules}: {replay}");
    }
}

/// A reader that has seen enough is no error, and certainly no panic.
#[test]
fn closed_pipes() {
    let mut list = conform(["list", "--profile", "full"]).command();
    let mut child = list.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::with_capacity(64, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), ""));
    assert!(first.starts_with("argsort/"), "{first}");
    for close in ["exec >&-", "exec 2>&-", "exec >&- 2>&-"] {
        in_shell(close, conform(["run", "--device", "cpu", SORT])).with(0);
    }
}

/// Results that cannot be written are an error with a line of its own.
#[test]
fn a_full_stdout_is_an_error() {
    let commands: [(&[&str], i32); 8] = [
        (&["list"], 2),
        (&["list", "--json"], 2),
        (&["devices"], 2),
        (&["show", SORT], 2),
        (&["run", "--device", "cpu", SORT], 2),
        (&["run", "--device", "cpu", SORT, "--json"], 2),
        (&["replay", "--device", "cpu", SORT], 129),
        (&["replay", "--device", "cpu", SORT, "--json"], 129),
    ];
    for (args, code) in commands {
        let mut command = conform(args).command();
        let ended = Ended::of(command.stdout(full()).output().unwrap()).with(code);
        assert_eq!(ended.stderr.lines().count(), 1, "{args:?}: {ended:#?}");
        assert!(ended.stderr.starts_with("conform: cannot write to stdout: "), "{args:?}: {ended:#?}");
    }
}

/// Without stderr the exit code still tells.
#[test]
fn a_full_stderr_changes_no_exit_code() {
    let commands: [(&str, &[&str], i32); 7] = [
        ("", &["run", "--device", "cpu", SORT], 0),
        ("", &["run", "--device", "nothing", SORT], 2),
        ("", &["run", "--profile", "nothing"], 2),
        ("refuse-open", &["run", "--device", "fake-0", SORT], 1),
        ("zeros", &["run", "--device", "fake-0", SORT], 1),
        ("refuse-open", &["replay", "--device", "fake-0", SORT], 125),
        ("", &["replay", "--device", "nothing", SORT], 125),
    ];
    for (rules, args, code) in commands {
        let mut command = conform(args).fake(rules).command();
        assert_eq!(
            command.stdout(Stdio::null()).stderr(full()).status().unwrap().code(),
            Some(code),
            "{rules} {args:?}"
        );
    }
}

/// Every write to it fails.
fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// The command, after the shell has done something to its descriptors.
fn in_shell(first: &str, conform: Conform) -> Ended {
    let inner = conform.command();
    let mut shell = std::process::Command::new("sh");
    shell.arg("-c").arg(format!("{first}; exec \"$@\"")).arg("sh").arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    Ended::of(shell.output().unwrap())
}

#[test]
fn show_says_what_a_case_is() {
    let show = conform(["show", NORMAL]).end().with(0);
    for words in [NORMAL, "weights", "[96, 63, 8]", "mul_mat_id(", "operations"] {
        assert!(show.stdout.contains(words), "'{words}' is not in {}", show.stdout);
    }
}

/// A device whose driver tells of its memory, and loses 1 MiB with every case.
#[test]
fn memory_that_is_not_given_back_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let run =
        ["run", "argsort/c=1", "argsort/c=2", "--device", "fake-0", "--jobs", "1", "--out", out.to_str().unwrap()];
    let ended = conform(run).fake("leak=1048576").end().with(0);
    let results = fs::read_to_string(out.join("results.jsonl")).unwrap();
    let used = results.lines().map(|line| {
        let memory = &serde_json::from_str::<serde_json::Value>(line).unwrap()["memory"];
        memory["total"].as_u64().unwrap() - memory["free"].as_u64().unwrap()
    });
    let n = used.clone().count();
    assert!((100..250).contains(&n), "{n}");
    assert!(used.eq((1..=n as u64).map(|i| i << 20)));
    // The least of the first 50 results, and of the last.
    let line = format!("memory in use on fake-0: 1 MiB after a fifth of the run, {} MiB at its end", n - 49);
    assert!(ended.stdout.contains(&line), "{line}: {}", ended.stdout);
    // A driver that does not tell leaves nothing behind.
    assert!(!conform(["run", SORT, "--device", "cpu"]).end().with(0).stdout.contains("memory in use"));
}

/// Every tensor, and what is expected of the output, with the shape of the plan, slowest dimension first.
#[test]
fn dumps_are_numpy_arrays_of_the_right_shape() {
    for id in [NORMAL, SORT] {
        let dir = tempfile::tempdir().unwrap();
        let dump = dir.path().join("not/there/yet");
        let show = conform(["show", id, "--json", "--dump", dump.to_str().unwrap()]).end().with(0).json();
        let tensors = show["plan"]["tensors"].as_array().unwrap();
        let shape = |t: &serde_json::Value| -> Vec<u64> {
            t["shape"].as_array().unwrap().iter().rev().map(|d| d.as_u64().unwrap()).collect()
        };
        let output = tensors.iter().find(|t| t["role"] == "output").unwrap();
        let inputs = tensors.iter().filter(|t| t["role"] != "output");
        let mut expected: Vec<_> = inputs.map(|t| (t["name"].as_str().unwrap(), shape(t))).collect();
        expected.extend(["expected", "bound", "class"].map(|name| (name, shape(output))));
        for (name, shape) in &expected {
            assert_is_array(&fs::read(dump.join(format!("{name}.npy"))).unwrap(), shape, name);
        }
        for file in show["files"].as_array().unwrap() {
            assert!(fs::read(file.as_str().unwrap()).unwrap().starts_with(MAGIC), "{file}");
        }
        assert!(show["files"].as_array().unwrap().len() >= expected.len());
    }
}

/// Where only a build decodes the weights their bytes are written, and nothing is expected.
#[test]
fn dumps_of_a_build_s_types_are_inputs_alone() {
    let id = "mul_mat_id/w=q2_0,x=f32,e=2,u=1,m=3,n=2,k=64/route=shuffle,data=normal/v1-1";
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let text = conform(["show", id, "--dump", dir.path().to_str().unwrap()]).end().with(0).stdout;
    assert!(text.contains("decoded-by-build: expected values need a build"), "{text}");
    assert!(text.contains("only inputs are written"), "{text}");
    assert_is_array(&fs::read(path("weights.blocks.npy")).unwrap(), &[1, 2, 3, 18], "weights");
    assert_is_array(&fs::read(path("x.npy")).unwrap(), &[1, 2, 1, 64], "x");
    assert!(["weights", "expected", "bound", "class"].iter().all(|name| !path(&format!("{name}.npy")).exists()));
}

const MAGIC: &[u8] = b"\x93NUMPY";

/// The header of format version 1: magic, version, its length, and a Python dictionary.
fn assert_is_array(bytes: &[u8], shape: &[u64], name: &str) {
    assert_eq!((&bytes[..6], bytes[6]), (MAGIC, 1), "{name}");
    let len = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..10 + len]).unwrap();
    let dims = shape.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let compact = header.replace(' ', "");
    assert!(
        compact.contains(&format!("'shape':({dims},)")) || compact.contains(&format!("'shape':({dims})")),
        "{header}"
    );
    assert!(compact.contains("'fortran_order':False"), "{header}");
    let size: u64 = compact.split_once("'descr':'").unwrap().1[2..3].parse().unwrap();
    assert_eq!((bytes.len() - 10 - len) as u64, size * shape.iter().product::<u64>(), "{name}: {header}");
}
