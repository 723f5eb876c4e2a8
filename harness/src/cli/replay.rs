//! `conform replay`: exit codes as `git bisect run` wants them.

use std::sync::mpsc;

use conform_cases::case::Case;

use super::args::Replay;
use super::{Exit, Outcome, devices, say, say_json};
use crate::report::failure::describe;
use crate::report::note;
use crate::result::{CaseResult, Verdict};
use crate::run::{Event, Settings, run};
use crate::select::device_glob;

pub(super) fn replay(args: &Replay) -> Outcome {
    let cases = args.cases.iter().map(|id| id.parse::<Case>().map_err(|e| e.to_string()));
    let cases = cases.collect::<Result<Vec<_>, _>>()?;
    let glob = device_glob(&args.device).map_err(|e| format!("--device: {e}"))?;
    let discovery = devices::find(&args.sources)?;
    let found = match discovery.select(&[glob]) {
        Ok(found) => found,
        Err(why) => {
            note(&format!("conform: --device: {why}"));
            return Ok(Exit::Untestable);
        }
    };
    let repeats = usize::from(args.repeats.repeat);
    let settings = Settings { jobs: 1, patience: args.patience.timeout, repeats, ..Settings::default() };
    let (send, events) = mpsc::channel();
    run(&settings, found, cases.into_iter(), &send)?;
    drop(send);
    let (mut results, mut wedged, mut missing) = (Vec::new(), false, !discovery.refused.is_empty());
    for event in events {
        match event {
            Event::Result(result) => results.push(*result),
            Event::Lost { device, why, wedged: w } => {
                note(&format!("{device}: {why}"));
                wedged |= w;
                missing = true;
            }
            Event::Skipped { case, why } => {
                note(&format!("skipped {case}: {why}"));
                missing = true;
            }
            Event::CaseDone => {}
        }
    }
    if args.json {
        say_json(&results)?;
    } else {
        say(&results.iter().map(text).collect::<String>())?;
    }
    Ok(exit(&results, wedged, missing, args.like.as_deref()))
}

fn text(r: &CaseResult) -> String {
    if let Some(signature) = r.signature() {
        return format!("{}  signature {signature}\n", describe(r));
    }
    let mut lines =
        vec![format!("{} on {}", r.verdict.word().to_uppercase(), r.device), format!("  case      {}", r.case)];
    lines.extend(r.decoded_by_build.then(|| "  weights   decoded-by-build".to_owned()));
    lines.extend(r.why.iter().map(|why| format!("  why       {why}")));
    lines.extend(r.metrics.iter().map(|m| {
        format!("  errors    ratio {:.3e}, NMSE {:.3e}; {} of {} elements exact", m.ratio, m.nmse, m.exact, m.elements)
    }));
    lines.join("\n") + "\n"
}

fn exit(results: &[CaseResult], wedged: bool, missing: bool, like: Option<&str>) -> Exit {
    if wedged {
        return Exit::ReplayWedged;
    }
    let bad = |r: &&CaseResult| r.verdict.is_bad();
    let this_failure = |r: &CaseResult| like.is_none_or(|like| r.signature().is_some_and(|s| s.to_string() == like));
    let unjudged = |r: &CaseResult| matches!(r.verdict, Verdict::Unsupported | Verdict::Inconclusive);
    if results.iter().filter(bad).any(this_failure) {
        Exit::Unexpected
    } else if missing || results.is_empty() || results.iter().any(|r| r.verdict.is_bad() || unjudged(r)) {
        Exit::Untestable
    } else {
        Exit::Good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(verdict: Verdict) -> CaseResult {
        CaseResult::bare("argsort/c=3/data=ties/v1-1", "cpu", verdict, None)
    }

    #[test]
    fn exit_codes() {
        let code = |verdicts: &[Verdict], wedged, missing, like| {
            let results: Vec<_> = verdicts.iter().map(|v| result(*v)).collect();
            exit(&results, wedged, missing, like)
        };
        use Verdict::*;
        assert_eq!(code(&[Pass], false, false, None), Exit::Good);
        assert_eq!(code(&[Pass, Fail], false, false, None), Exit::Unexpected);
        assert_eq!(code(&[Crash], false, false, Some("argsort/asc:short-rows:crash")), Exit::Unexpected);
        assert_eq!(code(&[Timeout], false, false, Some("argsort/asc:short-rows:crash")), Exit::Untestable);
        assert_eq!(code(&[Unsupported], false, false, None), Exit::Untestable);
        assert_eq!(code(&[Inconclusive], false, false, None), Exit::Untestable);
        assert_eq!(code(&[], false, true, None), Exit::Untestable);
        assert_eq!(code(&[Fail], true, true, None), Exit::ReplayWedged);
    }
}
