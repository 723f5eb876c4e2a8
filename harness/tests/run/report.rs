//! `conform report`: what a run printed, out of its files.

use crate::conform::{SORT, conform, run};

/// A run with failures, known results and cases that are not supported.
const ARGS: [&str; 7] = [
    "--device",
    "fake-0",
    "--cases",
    "0",
    "--expect",
    concat!(env!("CARGO_MANIFEST_DIR"), "/../ci/expectations/fake.toml"),
    "mul_mat_id/",
];

#[test]
fn a_report_is_what_the_run_printed() {
    let run = run("scale=1.02@w=q8_0;crash@w=f16*1", ARGS);
    assert_eq!(run.ended.code, Some(1), "{:#?}", run.ended);
    let out = run.out();
    let report = conform(["report", out.to_str().unwrap()]).end().with(1);
    // From the table on, but for the time.
    let summary = |text: &str| {
        let (_, summary) = text.split_once("\ndevice ").unwrap();
        let (before, last) = summary.trim_end().rsplit_once('\n').unwrap();
        let (cases, rest) = last.split_once(',').unwrap();
        format!("{before}\n{},{rest}", cases.split(" in ").next().unwrap())
    };
    assert_eq!(summary(&report.stdout), summary(&run.ended.stdout));
    assert!(report.stdout.contains("known results") && report.stdout.contains("FAIL on fake-0"), "{}", report.stdout);

    let markdown = conform(["report", out.to_str().unwrap(), "--markdown"]).end().with(1).stdout;
    for want in ["# conform: ", "| fake-0 | mul_mat_id |", "## Failures\n\n```text\nFAIL on fake-0", "known results"] {
        assert!(markdown.contains(want), "{want}: {markdown}");
    }
}

#[test]
fn bad_files_are_an_error_that_says_where() {
    let run = run("", ["--device", "fake-0", SORT]);
    let (out, results) = (run.out(), run.out().join("results.jsonl"));
    let report = || conform(["report", out.to_str().unwrap()]).end();
    let whole = std::fs::read_to_string(&results).unwrap();
    // A torn last line is dropped.
    std::fs::write(&results, format!("{whole}{}", &whole[..20])).unwrap();
    assert!(report().with(0).stdout.contains("1 cases, 0 unexpected results"));
    std::fs::write(&results, format!("{whole}{}\n{whole}", &whole[..20])).unwrap();
    let why = report().with(2).stderr;
    assert!(why.contains("results.jsonl: line 2, column ") && why.contains("; remove the line"), "{why}");
    assert_eq!(why.lines().count(), 1, "{why}");
    std::fs::remove_file(&results).unwrap();
    assert!(report().with(2).stderr.contains("name a folder of --out"));
}
