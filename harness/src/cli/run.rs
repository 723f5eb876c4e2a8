//! `conform run`

use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use conform_cases::case::Case;
use conform_cases::cost::Cost;
use serde::Serialize;

use super::args::Run;
use super::choose::{Asked, Chosen, choose};
use super::list::{Selected, filters, seed, select};
use super::{Exit, Outcome, devices, say, say_json};
use crate::discover::Discovery;
use crate::expect::{self, Recorded};
use crate::report::failure::describe;
use crate::report::note;
use crate::report::progress::Progress;
use crate::report::record::{Recorder, RunHead};
use crate::report::summary::{LostDevice, Summary};
use crate::result::CaseResult;
use crate::run::{Event, Settings, run as run_cases};
use crate::select::device_glob;
use crate::worker::Limits;

/// Failures of one signature that are described in full; the rest is counted.
const DESCRIBED: u64 = 3;

pub(super) fn run(args: &Run) -> Outcome {
    let started = Instant::now();
    let globs = args.device.iter().map(|g| device_glob(g)).collect::<Result<Vec<_>, _>>();
    let globs = globs.map_err(|e| format!("--device: {e}"))?;
    let expectations = args.expect.iter().map(|file| expect::read(file)).collect::<Result<Vec<_>, _>>();
    let expectations = expectations.map_err(|e| format!("--expect: {e}"))?.concat();
    let (mut cases, total, seed): (Box<dyn Iterator<Item = Case> + Send>, Option<u64>, u64) = selection(args, started)?;
    let discovery = devices::find(&args.sources)?;
    let Chosen { found, left_out, asked } = choose(&discovery, &globs, args.dedupe, &args.require)?;
    if found.is_empty() {
        return Err(format!("no device can be run on; {}", discovery.describe()));
    }
    let texts: Vec<&str> = args.selection.filters.iter().map(String::as_str).collect();
    let infos = found.iter().map(|f| &f.info).collect();
    let required = args.require.iter().map(ToString::to_string).collect();
    let head = RunHead::new(args.selection.profile.word(), seed, texts, infos, &discovery);
    let recorded = expectations.iter().map(Recorded::from).collect();
    let head = RunHead { required, left_out, expectations: recorded, ..head };
    let recorder = args.out.as_ref().map(|dir| Recorder::create(dir, &head)).transpose()?;
    if !args.json {
        say(&head_text(args, &discovery, &head, total))?;
    }
    let settings = Settings {
        jobs: args.jobs.map_or(Settings::default().jobs, usize::from),
        patience: args.patience.timeout,
        until: args.time.and_then(|t| started.checked_add(t)),
        max_failures: args.max_failures,
        repeats: usize::from(args.repeats.repeat),
        limits: Limits { cases: args.worker_cases, ..Limits::default() },
        expectations,
    };
    let mut listener = Listener {
        summary: Summary::new(found.iter().map(|f| f.info.key.clone()), &settings.expectations),
        progress: Progress::new(total),
        recorder,
        json: args.json,
        error: None,
    };
    let (send, events) = mpsc::channel();
    let ran = thread::scope(|scope| {
        let devices = found.clone();
        let runner = move || run_cases(&settings, devices, &mut cases, &send);
        let runner = thread::Builder::new().spawn_scoped(scope, runner).map_err(|e| format!("cannot run: {e}"))?;
        // Results that cannot be kept are no reason to make more: the runner stops when nobody listens.
        let _ = events.into_iter().try_for_each(|event| listener.hear(event));
        runner.join().unwrap_or_else(|_| Err("the runner died; see above".to_owned()))
    });
    listener.progress.finish();
    ran?;
    let summary = listener.summary;
    let said = if args.json {
        say_json(&Report { run: &head, summary: &summary })
    } else {
        let time = started.elapsed().as_secs_f64();
        say(&format!("\n{}{}\n", summary.text(), summary.ending(Some(time))))
    };
    let none_drawn = total.is_none() && summary.cases + summary.skipped == 0;
    let none_drawn = none_drawn.then(|| "no case that the filters select was drawn within --time".to_owned());
    let exit = match exit(&summary, &asked, &discovery) {
        Exit::Wedged => Exit::Wedged,
        // The rest was run all the same.
        _ if !discovery.refused.is_empty() => Exit::Usage,
        exit => exit,
    };
    match (exit, listener.error.or(said.err()).or(none_drawn)) {
        (exit, None) => Ok(exit),
        // That a device is wedged outranks that nobody could be told of the rest.
        (Exit::Wedged, Some(why)) => {
            note(&format!("conform: {why}"));
            Ok(Exit::Wedged)
        }
        (_, Some(why)) => Err(why),
    }
}

/// The cases to run, how many, and their seed. With a time limit random cases are drawn without end.
#[allow(clippy::type_complexity, reason = "one place builds it and one takes it apart")]
fn selection(
    args: &Run,
    started: Instant,
) -> Result<(Box<dyn Iterator<Item = Case> + Send>, Option<u64>, u64), String> {
    let s = &args.selection;
    if let (Some(time), true, None) = (args.time, s.profile.is_fresh(), s.cases) {
        let (seed, filters, shard) = (seed(s), filters(s)?, s.shard);
        let wanted = move |case: &Case| {
            let id = case.id();
            (filters.is_empty() || filters.iter().any(|f| f.matches(&id))) && shard.is_none_or(|shard| shard.holds(&id))
        };
        // Filters that no case matches must not be searched for beyond the time.
        let in_time = move |_: &Case| started.elapsed() < time;
        return Ok((Box::new(s.profile.cases(seed, u64::MAX).take_while(in_time).filter(wanted)), None, seed));
    }
    let Selected { cases, seed } = select(s)?;
    let total = cases.len() as u64;
    Ok((Box::new(longest_first(cases).into_iter()), Some(total), seed))
}

/// Cases larger than any that is drawn come first, so that no lane begins one when the others have nothing left. The
/// rest stay in their order.
fn longest_first(mut cases: Vec<Case>) -> Vec<Case> {
    let seconds = |case: &Case| case.body().cost().allowance_seconds();
    let most = Cost { operations: Cost::MAX_OPERATIONS, input_elements: Cost::MAX_INPUT_ELEMENTS, oracle_bytes: 0 };
    let large = |case: &Case| Some(seconds(case)).filter(|s| *s > most.allowance_seconds()).map_or(0, |s| s as u64);
    cases.sort_by_cached_key(|case| Reverse(large(case)));
    cases
}

fn head_text(args: &Run, all: &Discovery, head: &RunHead<'_>, total: Option<u64>) -> String {
    let cases = total.map_or_else(|| "drawn cases".to_owned(), |n| format!("{n} cases"));
    let profile = args.selection.profile;
    let (seed, devices) = (head.seed, &head.devices);
    let mut lines = vec![format!("profile {profile}, seed {seed}: {cases} on each of {} device(s)", devices.len())];
    lines.extend(devices.iter().map(|d| format!("  {}  {} ({})", d.key, d.name, short(&d.driver))));
    lines.extend(head.left_out.iter().map(|l| format!("  without {}: {} is the same GPU", l.device, l.stands_for_it)));
    lines.extend(all.missing.iter().chain(&all.refused).map(|m| format!("  no {}: {}", m.backend, m.why)));
    lines.join("\n") + "\n"
}

/// The start of a driver's description; `devices` and run.json have all of it.
fn short(text: &str) -> String {
    const SHOWN: usize = 40;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// What `--json` prints: enough to repeat the run, and what came of it.
#[derive(Serialize)]
struct Report<'a> {
    run: &'a RunHead<'a>,
    #[serde(flatten)]
    summary: &'a Summary,
}

/// Hears the events of a run and passes them to everyone who shows or keeps them.
struct Listener {
    summary: Summary,
    progress: Progress,
    recorder: Option<Recorder>,
    json: bool,
    error: Option<String>,
}

impl Listener {
    /// Breaks off when a result could not be kept or shown.
    fn hear(&mut self, event: Event) -> ControlFlow<()> {
        match event {
            Event::Result(result) => self.hear_result(&result),
            Event::CaseDone => {
                self.summary.cases += 1;
                self.progress.case_done();
            }
            Event::Lost { device, why, wedged } => {
                self.progress.suspend(|| note(&format!("{device}: {why}")));
                self.summary.lost.push(LostDevice { device, why, wedged });
            }
            Event::Skipped { case, why } => {
                self.progress.suspend(|| note(&format!("skipped {case}: {why}")));
                self.summary.skipped += 1;
                self.summary.skipped_why.get_or_insert(why);
            }
        }
        if self.error.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn hear_result(&mut self, result: &CaseResult) {
        if let Some(Err(e)) = self.recorder.as_mut().map(|r| r.record(result)) {
            self.error = Some(e);
        }
        let of_its_kind = self.summary.add(result);
        if result.is_unexpected() {
            self.progress.unexpected();
        }
        if of_its_kind.is_some_and(|n| n <= DESCRIBED) && !self.json {
            let text = format!("\n{}", describe(result));
            if let Err(e) = self.progress.suspend(|| say(&text)) {
                self.error = Some(e);
            }
        }
        for incident in &result.incidents {
            let line = format!(
                "note: {} on {}: {}; a fresh worker did not repeat it",
                incident.kind, result.device, incident.detail
            );
            self.progress.suspend(|| note(&line));
        }
    }
}

fn exit(summary: &Summary, asked: &[Asked], all: &Discovery) -> Exit {
    if summary.is_wedged() {
        return Exit::Wedged;
    }
    // What was asked for by name must have been judged, and some device in any case.
    let has_judged = |asked: &Asked| asked.keys.iter().any(|key| summary.judged(key) > 0);
    let silent: Vec<&Asked> = asked.iter().filter(|asked| !has_judged(asked)).collect();
    let nothing_judged = summary.devices.keys().all(|key| summary.judged(key) == 0);
    // A device that was lost has said why.
    let has_said = |asked: &Asked| summary.lost.iter().any(|l| asked.keys.contains(&l.device));
    for Asked { glob, .. } in silent.iter().filter(|asked| !has_said(asked)) {
        note(&format!("{glob} was asked for and judged nothing"));
    }
    if asked.is_empty() && nothing_judged && summary.lost.is_empty() {
        note(
            "no case was judged on any device: see above what is unsupported, and name a device or build that supports it",
        );
    }
    // Every machine has the embedded device.
    let no_cpu = all.missing.iter().find(|m| m.backend == "cpu" && asked.is_empty());
    if let Some(missing) = no_cpu {
        note(&format!("cpu is missing: {}", missing.why));
    }
    // A device that was found and could not be used is nothing to be expected, whoever asked for it.
    if summary.unexpected > 0
        || summary.skipped > 0
        || !silent.is_empty()
        || nothing_judged
        || no_cpu.is_some()
        || !summary.lost.is_empty()
    {
        Exit::Unexpected
    } else {
        Exit::Good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_largest_cases_change_places() {
        let ids = [
            "argsort/c=3/data=ties/v1-1",
            "mul_mat_id/w=f16,x=f32,e=16,u=2,m=64,n=9,k=64/route=shuffle,data=normal/v1-1",
            "mul_mat_id/w=q4_K,x=f32,e=64,u=4,m=4096,n=16,k=2048,b=4/route=shuffle,data=normal/v1-1",
            "argsort/c=5/data=ties/v1-1",
            "mul_mat_id/w=q4_K,x=f32,e=128,u=4,m=4096,n=16,k=2048,b=4/route=shuffle,data=normal/v1-1",
        ];
        let cases = ids.iter().map(|id| id.parse().unwrap()).collect();
        let ordered: Vec<String> = longest_first(cases).iter().map(Case::id).collect();
        assert_eq!(ordered, [4, 2, 0, 1, 3].map(|i| ids[i]));
    }
}
