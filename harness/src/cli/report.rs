//! `conform report`

use std::collections::BTreeSet;

use super::args::Report;
use super::{Exit, Outcome, say};
use crate::report::failure::describe;
use crate::report::read;
use crate::report::summary::Summary;

/// Failures of one signature that are described in full, as in a run.
const DESCRIBED: u64 = 3;

/// Shows a run again, out of the files that it left. The exit code is the run's, as far as results decide it.
pub(super) fn report(args: &Report) -> Outcome {
    let (mut summary, mut cases, mut failures) = (Summary::default(), BTreeSet::new(), String::new());
    let head = read::folder(&args.dir, |result| {
        if summary.add(&result).is_some_and(|n| n <= DESCRIBED) {
            failures.push('\n');
            failures.push_str(&describe(&result));
        }
        cases.insert(result.case);
    })?;
    let read::Head { profile, seed, conform, .. } = &head;
    let devices: String = head.devices.iter().map(|d| format!("  {}  {} ({})\n", d.key, d.name, d.driver)).collect();
    let (count, unexpected) = (cases.len(), summary.unexpected);
    let expected = if summary.expected > 0 { format!("{} expected and ", summary.expected) } else { String::new() };
    say(&format!(
        "profile {profile}, seed {seed}, by conform {conform}\n{devices}{failures}\n{}{count} cases, \
         {expected}{unexpected} unexpected results\n",
        summary.text()
    ))?;
    Ok(if unexpected > 0 { Exit::Unexpected } else { Exit::Good })
}
