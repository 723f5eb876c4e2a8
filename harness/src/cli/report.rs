//! `conform report`

use std::collections::BTreeSet;

use super::args::Report;
use super::{Exit, Outcome, say};
use crate::expect::Expectation;
use crate::report::failure::describe;
use crate::report::markdown::markdown;
use crate::report::note;
use crate::report::read::{Folder, Head};
use crate::report::summary::Summary;
use crate::result::Verdict;

/// Failures of one signature that are described in full, as in a run.
const DESCRIBED: u64 = 3;

/// Shows a run again, out of the files that it left. The exit code is the run's, as far as results decide it: devices that
/// were lost and cases that were skipped are not in the files.
pub(super) fn report(args: &Report) -> Outcome {
    let folder = Folder::read(&args.dir)?;
    let head = &folder.head;
    let known: Result<Vec<Expectation>, String> = head.expectations.iter().cloned().map(TryInto::try_into).collect();
    let known = known.map_err(|why| format!("{}: 'expectations': {why}", args.dir.join("run.json").display()))?;
    let mut summary = Summary::new(head.devices.iter().map(|d| d.key.clone()), &known);
    let (mut cases, mut failures, mut is_wedged) = (BTreeSet::new(), String::new(), false);
    for result in folder.results() {
        let result = result?;
        if summary.add(&result).is_some_and(|n| n <= DESCRIBED) {
            failures.push('\n');
            failures.push_str(&describe(&result));
        }
        is_wedged |= result.verdict == Verdict::Wedged;
        cases.insert(result.case);
    }
    summary.cases = cases.len() as u64;
    let text = if args.markdown { markdown(head, &failures, &summary) } else { text(head, &failures, &summary) };
    say(&text)?;
    let has_judged = summary.devices.keys().any(|key| summary.judged(key) > 0);
    if !has_judged {
        note("no case was judged on any device");
    }
    Ok(match () {
        () if is_wedged => Exit::Wedged,
        () if summary.unexpected > 0 || !has_judged => Exit::Unexpected,
        () => Exit::Good,
    })
}

fn text(head: &Head, failures: &str, summary: &Summary) -> String {
    let Head { profile, seed, conform, devices, .. } = head;
    let devices: String = devices.iter().map(|d| format!("  {}  {} ({})\n", d.key, d.name, d.driver)).collect();
    let (all, ending) = (summary.text(), summary.ending(None));
    format!("profile {profile}, seed {seed}, by conform {conform}\n{devices}{failures}\n{all}{ending}\n")
}
