//! `conform devices --probe`

use std::fmt::Write as _;

use conform_cases::formats::ElemType;
use serde_json::json;

use super::args::Devices;
use super::{Exit, Outcome, devices, say, say_json};
use crate::probe::{Probed, Shown, probe};
use crate::report::note;
use crate::select::device_glob;
use crate::worker::Limits;

pub(super) fn run(args: &Devices) -> Outcome {
    let globs = args.device.iter().map(|g| device_glob(g)).collect::<Result<Vec<_>, _>>();
    let globs = globs.map_err(|e| format!("--device: {e}"))?;
    let discovery = devices::find(&args.sources)?;
    let found = discovery.select(&globs).map_err(|e| format!("--device: {e}"))?;
    let mut all = Vec::new();
    for f in &found {
        let key = &f.info.key;
        let mut progress = |weights: ElemType| {
            if !args.json {
                note(&format!("probing {key}: {weights}"));
            }
        };
        let probed = probe(f, args.timeout, Limits::default(), &mut progress);
        if !args.json {
            say(&text(&probed))?;
        }
        all.push(probed);
    }
    if args.json {
        say_json(&json!({ "probed": all }))?;
    }
    Ok(match exit(&all, !globs.is_empty()) {
        Exit::Wedged => Exit::Wedged,
        _ if !discovery.refused.is_empty() => Exit::Usage,
        exit => exit,
    })
}

/// A table that is wrong is nothing to be expected, nor is a device that could not be asked, or was asked for and has
/// nothing to show.
fn exit(all: &[Probed], are_named: bool) -> Exit {
    let is_wrong = |p: &Probed| {
        let is_silent = are_named && p.shown.is_empty();
        is_silent || p.lost.is_some() || p.shown.iter().any(|s| s.standing.is_wrong() || s.why.is_some())
    };
    if all.iter().any(|p| p.wedged) {
        Exit::Wedged
    } else if all.iter().any(is_wrong) {
        Exit::Unexpected
    } else {
        Exit::Good
    }
}

/// A line for each weight type and what is equal over its numbers of tokens.
fn text(probed: &Probed) -> String {
    let mut text = format!("{}\n", probed.device);
    let lines: Vec<[String; 4]> = groups(&probed.shown).iter().map(|g| line(g)).collect();
    let width = |i: usize| lines.iter().map(|l| l[i].len()).max().unwrap_or(0);
    let (w, tokens, seen) = (width(0), width(1), width(2));
    for [a, b, c, d] in &lines {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {a:<w$}  {b:<tokens$}  {c:<seen$}  {d}");
    }
    if lines.is_empty() && probed.lost.is_none() {
        text += "  no weight type is supported here\n";
    }
    for why in probed.shown.iter().filter_map(|s| s.why.as_ref()).chain(&probed.lost) {
        let _ = writeln!(text, "  {why}");
    }
    text
}

/// Neighbours that show the same.
fn groups(shown: &[Shown]) -> Vec<&[Shown]> {
    let same = |a: &Shown, b: &Shown| (a.weights, &a.seen, &a.standing) == (b.weights, &b.seen, &b.standing);
    shown.chunk_by(same).collect()
}

fn line(group: &[Shown]) -> [String; 4] {
    let tokens: Vec<String> = group.iter().map(|s| s.tokens.to_string()).collect();
    let first = &group[0];
    [first.weights.to_string(), format!("n={}", tokens.join(",")), first.seen.clone(), first.standing.to_string()]
}
