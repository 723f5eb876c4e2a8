//! Counting results by device and op, and bugs by signature.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use conform_cases::case::Case;
use conform_cases::judge::Status;
use serde::Serialize;

use super::memory::MemoryInUse;
use super::seconds;
use super::table::Table;
use crate::expect::Expectation;
use crate::result::{CaseResult, Times, Verdict};
use crate::select::Filter;

/// Reasons for `unsupported` that are printed for one device and op.
const REASONS: usize = 4;

/// Counts of one device and op.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// Results by verdict.
    pub verdicts: BTreeMap<Verdict, u64>,
    /// Bad results that do not gate.
    pub reported_only: u64,
    /// Where the time went, microseconds.
    pub times: Times,
    /// By precision model.
    pub models: BTreeMap<String, ModelTally>,
    /// Why cases are unsupported, by how often.
    pub unsupported: BTreeMap<String, u64>,
    /// Checks that did not apply or were not possible: by reason, how often each.
    pub not_possible: BTreeMap<String, BTreeMap<String, u64>>,
}

/// What is known of a precision model after a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ModelTally {
    /// Cases judged under it.
    pub cases: u64,
    /// Sum over cases of the share of elements whose bound is below half their value.
    #[serde(skip)]
    power: f64,
    /// Mean power.
    pub mean_power: f64,
    /// Elements, and how many of them are exact.
    pub elements: u64,
    /// Elements compared without tolerance.
    pub exact: u64,
    /// Largest error ratio.
    pub ratio: f64,
}

impl ModelTally {
    /// Adds what other cases say.
    fn add(&mut self, other: &ModelTally) {
        self.cases += other.cases;
        self.power += other.power;
        self.mean_power = self.power / self.cases.max(1) as f64;
        self.elements += other.elements;
        self.exact += other.exact;
        self.ratio = self.ratio.max(other.ratio);
    }
}

/// Results that look like one bug.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// How many cases.
    pub count: u64,
    /// Types and shape classes that show it.
    pub kinds: BTreeSet<String>,
    /// The cheapest of them.
    pub smallest: String,
    /// What replaying it must be told beside the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub told: Option<String>,
    #[serde(skip)]
    cost: u64,
}

/// What a run said about an expectation.
#[derive(Clone, Debug, Serialize)]
pub struct Known {
    #[serde(skip)]
    expectation: Expectation,
    /// Its patterns of cases that no result has met yet.
    #[serde(skip)]
    unmet: Vec<Filter>,
    /// Where it is written: file and entry.
    pub place: String,
    /// Its reason.
    pub reason: String,
    /// Where to read more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Results that are as it says.
    pub expected: u64,
    /// Of these, passes that stand beside a bad verdict in the expectation.
    pub passed: u64,
    /// Results that are not.
    pub unexpected: u64,
}

impl From<&Expectation> for Known {
    fn from(e: &Expectation) -> Self {
        let (place, reason, link) = (e.place.clone(), e.reason.clone(), e.link.clone());
        let unmet = e.cases.clone();
        Known { expectation: e.clone(), unmet, place, reason, link, expected: 0, passed: 0, unexpected: 0 }
    }
}

/// A device that was lost during the run.
#[derive(Clone, Debug, Serialize)]
pub struct LostDevice {
    /// Its key.
    pub device: String,
    /// Why.
    pub why: String,
    /// It worked before.
    pub wedged: bool,
}

/// What a whole run came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// By device, then op.
    pub devices: BTreeMap<String, BTreeMap<String, Tally>>,
    /// Bad results that nobody expected, by device, then by what they have in common across types and shapes.
    pub groups: BTreeMap<String, BTreeMap<String, Group>>,
    /// By device, where its driver tells.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub memory: BTreeMap<String, MemoryInUse>,
    /// Devices that were lost.
    pub lost: Vec<LostDevice>,
    /// Cases that could not be prepared, with the reason of the first.
    pub skipped: u64,
    /// Why the first skipped case was skipped.
    pub skipped_why: Option<String>,
    /// Deaths of workers that were not repeated.
    pub incidents: u64,
    /// Results that fail the run.
    pub unexpected: u64,
    /// Results that are as an expectation says.
    pub expected: u64,
    /// Every expectation, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<Known>,
    /// Cases that were done.
    pub cases: u64,
}

impl Summary {
    /// A summary that names every device, asked or not.
    pub fn new(devices: impl IntoIterator<Item = String>, expectations: &[Expectation]) -> Self {
        let devices = devices.into_iter().map(|key| (key, BTreeMap::new())).collect();
        Summary { devices, known: expectations.iter().map(Known::from).collect(), ..Summary::default() }
    }

    /// Counts a result. Returns how many of its kind there are now where it is worth describing: for a bad one nobody
    /// expected those of its device and signature, for another surprise those of its expectation.
    pub fn add(&mut self, r: &CaseResult) -> Option<u64> {
        let op = r.case.split('/').next().unwrap_or_default().to_owned();
        let tally = self.devices.entry(r.device.clone()).or_default().entry(op).or_default();
        tally.add(r);
        if let Some(memory) = r.memory {
            self.memory.entry(r.device.clone()).or_default().add(memory);
        }
        self.incidents += r.incidents.len() as u64;
        self.unexpected += u64::from(r.is_unexpected());
        self.expected += u64::from(r.expected.is_some());
        let known = self.known.iter_mut().find(|k| k.expectation.speaks_of(&r.device, &r.case));
        let surprises = known.and_then(|k| k.add(r));
        if r.expected.is_some() {
            return None;
        }
        let Some(signature) = r.signature() else { return surprises };
        let cost = r.case.parse::<Case>().map_or(u64::MAX, |c| c.body().cost().operations);
        let groups = self.groups.entry(r.device.clone()).or_default();
        let bug = format!("{} {}", signature.op, signature.what);
        let group = groups.entry(bug).or_insert_with(|| Group {
            count: 0,
            kinds: BTreeSet::new(),
            smallest: r.case.clone(),
            told: r.told.clone(),
            cost,
        });
        group.kinds.insert(signature.kind);
        group.count += 1;
        if cost < group.cost {
            (group.smallest, group.cost) = (r.case.clone(), cost);
        }
        Some(group.count)
    }

    /// Results of a device that judged it.
    pub fn judged(&self, device: &str) -> u64 {
        let tallies = self.devices.get(device).into_iter().flat_map(|ops| ops.values());
        let verdicts = tallies.flat_map(|t| &t.verdicts);
        verdicts.filter(|(v, _)| v.is_judged()).map(|(_, n)| n).sum()
    }

    /// True if a device that worked was lost.
    pub fn is_wedged(&self) -> bool {
        self.lost.iter().any(|l| l.wedged)
    }

    /// The summary as text.
    pub fn text(&self) -> String {
        let (mut text, models) = (self.results_table().plain(), self.models_table());
        if !models.is_empty() {
            text.push('\n');
            text += &models.plain();
        }
        text + &self.remarks()
    }

    /// What it comes to, in a few words; the time where it is known, in seconds.
    pub fn ending(&self, time: Option<f64>) -> String {
        let time = time.map(|time| format!(" in {time:.1} s")).unwrap_or_default();
        let expected = if self.expected > 0 { format!("{} expected and ", self.expected) } else { String::new() };
        format!("{} cases{time}, {expected}{} unexpected results", self.cases, self.unexpected)
    }

    /// All that is no table.
    pub(super) fn remarks(&self) -> String {
        let mut text = String::new();
        self.memory_in_use(&mut text);
        self.impossible_checks(&mut text);
        self.known_results(&mut text);
        self.notes(&mut text);
        text
    }

    /// Results and times by device and op.
    pub(super) fn results_table(&self) -> Table {
        let seen = |v: &Verdict| *v == Verdict::Pass || self.tallies().any(|(_, _, t)| t.verdicts.contains_key(v));
        let verdicts: Vec<Verdict> = Verdict::ALL.into_iter().filter(seen).collect();
        let mut table = Table::default().text("device", self.device_width()).text("op", 10);
        for v in &verdicts {
            table = table.number(v.word(), 7);
        }
        for column in ["generate", "oracle", "load", "upload", "compute", "read", "judge"] {
            table = table.number(column, 8);
        }
        for (device, op, t) in self.tallies() {
            let counts = verdicts.iter().map(|v| t.verdicts.get(v).copied().unwrap_or(0).to_string());
            let x = &t.times;
            let times = [x.generate, x.oracle, x.load, x.upload, x.compute, x.read, x.judge].map(seconds);
            table.row([device.to_owned(), op.to_owned()].into_iter().chain(counts).chain(times));
        }
        table
    }

    /// What a pass under each precision model is worth.
    pub(super) fn models_table(&self) -> Table {
        // Whatever ops the cases are of.
        let mut rows: BTreeMap<(&str, &str), ModelTally> = BTreeMap::new();
        for (device, _, t) in self.tallies() {
            t.models.iter().for_each(|(name, m)| rows.entry((device, name)).or_default().add(m));
        }
        let table = Table::default().text("device", self.device_width()).text("precision model", 0);
        let mut table = table.number("cases", 7).number("power", 7).number("exact", 7).number("max ratio", 9);
        for ((device, name), m) in rows {
            let (power, exact) = (100.0 * m.mean_power, 100.0 * m.exact as f64 / m.elements.max(1) as f64);
            let numbers =
                [m.cases.to_string(), format!("{power:.1} %"), format!("{exact:.1} %"), format!("{:.3}", m.ratio)];
            table.row([device.to_owned(), name.to_owned()].into_iter().chain(numbers));
        }
        table
    }

    /// Whether memory of devices was lost.
    fn memory_in_use(&self, text: &mut String) {
        for (device, memory) in self.memory.iter().filter(|(_, memory)| memory.is_telling()) {
            push(text, format_args!("\nmemory in use on {device}: {memory}\n"));
        }
    }

    /// Checks that could not be made: those with the same reason and count together, and so devices.
    fn impossible_checks(&self, text: &mut String) {
        type Names<'a> = BTreeSet<&'a str>;
        let mut by_reason: BTreeMap<(&str, &str, u64), (Names<'_>, Names<'_>)> = BTreeMap::new();
        for (device, op, t) in self.tallies() {
            for (why, checks) in &t.not_possible {
                for (check, count) in checks {
                    let (checks, devices) = by_reason.entry((op, why, *count)).or_default();
                    checks.insert(check);
                    devices.insert(device);
                }
            }
        }
        if !by_reason.is_empty() {
            push(text, format_args!("\nchecks that did not apply or were not possible\n"));
        }
        let join = |names: Names<'_>| names.into_iter().collect::<Vec<_>>().join(", ");
        for ((op, why, count), (checks, devices)) in by_reason {
            push(text, format_args!("  {count:>6} × {op} {} ({why}), on {}\n", join(checks), join(devices)));
        }
    }

    /// What came of each expectation.
    fn known_results(&self, text: &mut String) {
        if !self.known.is_empty() {
            push(text, format_args!("\nknown results\n"));
        }
        for k in &self.known {
            let link = k.link.as_ref().map(|link| format!(" ({link})")).unwrap_or_default();
            let what = k.expectation.outcome();
            let passed = if k.passed > 0 { format!(", {} of them passed", k.passed) } else { String::new() };
            push(text, format_args!("  {:>6} × {what}: {}{link}{passed}\n", k.expected, k.reason));
            match (k.expected, k.unexpected) {
                (0, 0) => push(text, format_args!("           met no result of this run ({})\n", k.place)),
                (n, 0) if n == k.passed => {
                    push(text, format_args!("           all of them pass: remove or narrow it ({})\n", k.place));
                }
                (_, 0) => k.say_unmet(text),
                (_, n) => push(text, format_args!("           {n} results are something else ({})\n", k.place)),
            }
        }
    }

    /// What else is worth saying.
    fn notes(&self, text: &mut String) {
        let reported: u64 = self.tallies().map(|(_, _, t)| t.reported_only).sum();
        if reported > 0 {
            push(
                text,
                format_args!("\n{reported} bad results are reported only: the contract does not bind those devices\n"),
            );
        }
        if self.incidents > 0 {
            push(
                text,
                format_args!(
                    "\n{} deaths of workers that a fresh worker did not repeat (not gating)\n",
                    self.incidents
                ),
            );
        }
        if let Some(why) = &self.skipped_why {
            push(text, format_args!("\n{} times a case could not be prepared here, first: {why}\n", self.skipped));
        }
        for lost in &self.lost {
            push(text, format_args!("\n{}: {}\n", if lost.wedged { "WEDGED" } else { "unavailable" }, lost.why));
        }
        for (device, groups) in &self.groups {
            let mut groups: Vec<_> = groups.iter().collect();
            groups.sort_by_key(|(_, g)| std::cmp::Reverse(g.count));
            for (bug, g) in groups {
                let kinds: Vec<&str> = g.kinds.iter().map(String::as_str).collect();
                push(text, format_args!("\n{} × {bug} on {device}\n", g.count));
                push(text, format_args!("  seen in   {}\n", kinds.join(", ")));
                let replay = CaseResult::replay(&g.smallest, device, g.told.as_deref());
                push(text, format_args!("  smallest  {replay}\n"));
            }
        }
        for (device, op, t) in self.tallies() {
            for (why, count) in t.unsupported.iter().take(REASONS) {
                push(text, format_args!("\n{count} × {op} unsupported on {device}: {why}\n"));
            }
            let more = t.unsupported.len().saturating_sub(REASONS);
            if more > 0 {
                push(text, format_args!("  and {more} more reasons\n"));
            }
        }
        text.push('\n');
    }

    fn device_width(&self) -> usize {
        self.devices.keys().map(String::len).max().unwrap_or(0).max("device".len())
    }

    fn tallies(&self) -> impl Iterator<Item = (&str, &str, &Tally)> {
        self.devices.iter().flat_map(|(d, ops)| ops.iter().map(move |(op, t)| (d.as_str(), op.as_str(), t)))
    }
}

fn push(text: &mut String, args: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = text.write_fmt(args);
}

impl Known {
    /// Counts a result that it speaks of. Returns how many were something else by now, if this one is.
    fn add(&mut self, r: &CaseResult) -> Option<u64> {
        self.expected += u64::from(r.expected.is_some());
        let may_be_bad = self.expectation.verdicts.iter().any(|v| v.is_bad());
        self.passed += u64::from(r.expected.is_some() && r.verdict == Verdict::Pass && may_be_bad);
        self.unexpected += u64::from(r.unexpected.is_some());
        self.unmet.retain(|case| !case.matches(&r.case));
        r.unexpected.as_ref().map(|_| self.unexpected)
    }

    /// Names a pattern among several that may be stale.
    fn say_unmet(&self, text: &mut String) {
        if let Some(first) = self.unmet.first() {
            let (n, of) = (self.unmet.len(), self.expectation.cases.len());
            let first = first.text();
            push(text, format_args!("           {n} of {of} patterns met no result, first {first} ({})\n", self.place));
        }
    }
}

impl Tally {
    fn add(&mut self, r: &CaseResult) {
        *self.verdicts.entry(r.verdict).or_default() += 1;
        self.reported_only += u64::from(r.verdict.is_bad() && !r.gating);
        let (sum, add) = (&mut self.times, &r.times);
        sum.generate += add.generate;
        sum.oracle += add.oracle;
        sum.load += add.load;
        sum.upload += add.upload;
        sum.compute += add.compute;
        sum.read += add.read;
        sum.judge += add.judge;
        if r.verdict == Verdict::Unsupported {
            *self.unsupported.entry(r.why.clone().unwrap_or_default()).or_default() += 1;
        }
        if let Some(m) = &r.metrics {
            let model = self.models.entry(m.model.clone()).or_default();
            model.add(&ModelTally {
                cases: 1,
                power: m.power,
                mean_power: m.power,
                elements: m.elements as u64,
                exact: m.exact as u64,
                ratio: m.ratio,
            });
        }
        for check in &r.checks {
            if let Status::NotPossible { why } = &check.status {
                let checks = self.not_possible.entry(why.clone()).or_default();
                *checks.entry(check.name.clone()).or_default() += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::judge::{Check, Failure};

    #[test]
    fn one_bug_is_one_group_with_its_smallest_case() {
        let mut s = Summary::default();
        for n in [9, 3, 7] {
            let id = format!("mul_mat_id/w=f32,x=f32,e=1,u=1,m=1,n={n},k=1/route=one,data=wide/v1-1");
            let mut r = CaseResult::bare(&id, "cpu", Verdict::Fail, None);
            r.checks.push(Check::failed("values", Failure::new("…")));
            s.add(&r);
        }
        s.add(&CaseResult::bare("argsort/c=3/data=ties/v1-1", "cpu", Verdict::Pass, None));
        assert_eq!(s.unexpected, 3);
        assert_eq!(s.judged("cpu"), 4);
        let group = &s.groups["cpu"]["mul_mat_id values"];
        assert_eq!(group.count, 3);
        assert!(group.smallest.contains(",n=3,"));
        let text = s.text();
        assert!(text.contains("3 × mul_mat_id values on cpu"), "{text}");
    }
}
