//! Comparing what a device left behind with what is right.
//!
//! Every property is a named check that passed, failed or was not possible on
//! this device. The checks of values belong to the op's [`Oracle`]; those that
//! hold for any op (everything written, inputs unchanged, repeatable) are here.

pub mod best;
pub mod pattern;
pub mod permutation;
mod rows;
pub mod values;

use serde::{Deserialize, Serialize};

use crate::formats::{read_f32, read_i32};
use crate::inputs::{Decoded, Inputs};
use crate::model::{Kernels, Model};
use crate::plan::{Layout, Plan, Role};
use values::Expected;

/// What a device can be asked: a check that needs something absent here is reported as not possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Capabilities {
    /// Whose kernels it runs: that decides the precision model, and whether cases outside the usual contract gate.
    pub kernels: Kernels,
    /// Inputs, weights included, can be read back.
    pub readable_inputs: bool,
    /// Scratch memory can be filled with a pattern between runs.
    pub scratch_poison: bool,
    /// The same step on the same bytes gives the same bits.
    pub deterministic: bool,
    /// Subnormal f32 results and operands may be flushed to zero.
    pub flushes_subnormals: bool,
    /// Subnormal f16 results and operands may be flushed to zero.
    pub flushes_f16: bool,
}

impl Capabilities {
    /// What this project's own devices promise, where subnormals are kept.
    pub const OWN: Self = Capabilities {
        kernels: Kernels::Own,
        readable_inputs: true,
        scratch_poison: true,
        deterministic: true,
        flushes_subnormals: false,
        flushes_f16: false,
    };
}

/// Every check there is.
pub const CHECKS: [&str; 30] = [
    "support",
    "decoded",
    "written",
    "class",
    "exact",
    "values",
    "untouched",
    "scale",
    "bias",
    "noise",
    "permutation",
    "order",
    "distinct",
    "best",
    "inputs",
    "repeat",
    "size",
    "refusal",
    "mismatch",
    "transfers",
    "blob",
    "queued",
    "roundtrip",
    "placement",
    "source",
    "outside",
    "intact",
    "logits",
    "others",
    "partial",
];

/// Outputs are filled with these before the runs, a different one each time: as f32 they are NaN with a payload
/// that no arithmetic produces, as i32 they are no index.
pub const POISONS: [u32; 2] = [0xffc0_dea5, 0x7fd1_5ea5];

/// The right values of one case.
pub trait Oracle: Send + Sync {
    /// The output tensor that must hold the same bits after each run. Without one every run is judged.
    fn repeated(&self) -> Option<usize>;

    /// Computes what judging a device needs, as far as it is not known yet: it can be done while the device computes.
    fn prepare(&self, _inputs: &Inputs<'_>, _device: &Capabilities) {}

    /// Judges what one run left behind.
    fn judge(&self, inputs: &Inputs<'_>, device: &Capabilities, run: &RunBytes<'_>) -> Findings;

    /// Value, bound and class of every element of the repeated output, for dumps; nothing where no values are judged.
    fn expected(&self, inputs: &Inputs<'_>, device: &Capabilities) -> Vec<Expected>;
}

/// What one run left behind: outputs, and the host memory that steps wrote.
#[derive(Clone, Copy)]
pub struct RunBytes<'a> {
    execution: &'a Execution<'a>,
    run: usize,
    /// What outputs, and host memory that steps write, were filled with before the run.
    pub poison: u32,
}

impl<'a> RunBytes<'a> {
    /// The `run`-th run of an execution.
    pub fn new(execution: &'a Execution<'a>, run: usize) -> Self {
        RunBytes { execution, run, poison: POISONS[run] }
    }

    /// An output's allocation.
    pub fn tensor(&self, output: usize) -> &'a [u8] {
        let e = self.execution;
        let at = e.layout.results[self.run][output];
        at.map_or(&[], |at| &e.results[at..at + e.plan.tensors[output].parent_bytes()])
    }

    /// Host memory that steps wrote.
    pub fn buffer(&self, buffer: usize) -> &'a [u8] {
        let e = self.execution;
        let at = e.layout.left[self.run][buffer];
        at.map_or(&[], |at| &e.results[at..at + e.plan.buffers[buffer].bytes])
    }
}

/// What an oracle found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// The op's checks.
    pub checks: Vec<Check>,
    /// Sizes of errors, where values are approximate.
    pub metrics: Option<Metrics>,
}

impl Findings {
    /// Where something is wrong, names the first of these models under which nothing would be. The verdict stays: a
    /// tolerance is never widened because a device needs it.
    pub(crate) fn name_looser_model(&mut self, models: &[Model], judge: impl Fn(&Model) -> Findings) {
        let failed = self.checks.iter_mut().find_map(|c| match &mut c.status {
            Status::Failed(failure) => Some(failure),
            _ => None,
        });
        let Some(failure) = failed else { return };
        if let Some(model) = models.iter().find(|model| judge(model).is_good()) {
            failure.what = format!("{}; only the looser model '{}' would pass", failure.what, model.name);
        }
    }

    fn has_no_failure(&self) -> bool {
        self.checks.iter().all(|c| c.failure().is_none())
    }

    /// True if something was judged, and nothing is wrong.
    fn is_good(&self) -> bool {
        let judged = self.metrics.as_ref().is_some_and(|m| m.says_nothing().is_none());
        judged && self.has_no_failure()
    }
}

/// One property, and how it went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The check's name.
    pub name: String,
    /// How it went.
    #[serde(flatten)]
    pub status: Status,
}

/// How a check went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Status {
    /// The property holds.
    Passed,
    /// It does not.
    Failed(Failure),
    /// It could not be looked at, and why.
    NotPossible {
        /// The reason, in one line.
        why: String,
    },
}

/// What is wrong, in words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// One line: how many elements, and what is wrong with them.
    pub what: String,
    /// The worst element: where, expected, got, allowed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub worst: Option<String>,
    /// What the wrong elements have in common.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pattern: Option<String>,
}

/// Sizes of errors over one output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Name of the precision model.
    pub model: String,
    /// Elements of the output.
    pub elements: usize,
    /// Elements compared without tolerance.
    pub exact: usize,
    /// Elements that a correct device may overflow on: not judged.
    pub inconclusive: usize,
    /// Largest error / allowed error.
    pub ratio: f64,
    /// Share of judged elements that are exact or whose bound is below half of the value: what a pass is worth.
    pub power: f64,
    /// Sum of squared errors / sum of squared values, the field's habit.
    pub nmse: f64,
    /// Largest absolute error.
    pub max_abs: f64,
    /// Largest relative error where the right value is not zero.
    pub max_rel: f64,
    /// Largest error in units in the last place of the right value.
    pub max_ulp: f64,
    /// Zeros in place of every value would pass: the bounds are wider than the values.
    pub blind: bool,
}

impl Metrics {
    /// Why a pass would say nothing about the device, if so.
    fn says_nothing(&self) -> Option<String> {
        if self.inconclusive == self.elements {
            return Some("every element may overflow on a correct device".to_owned());
        }
        self.blind.then(|| format!("zeros would pass under the model '{}'", self.model))
    }
}

impl Check {
    /// A check that passed.
    pub fn passed(name: &str) -> Self {
        debug_assert!(CHECKS.contains(&name), "{name}");
        Check { name: name.to_owned(), status: Status::Passed }
    }

    /// A check that failed.
    pub fn failed(name: &str, failure: Failure) -> Self {
        debug_assert!(CHECKS.contains(&name), "{name}");
        Check { name: name.to_owned(), status: Status::Failed(failure) }
    }

    /// A check that could not be made.
    pub fn not_possible(name: &str, why: impl Into<String>) -> Self {
        debug_assert!(CHECKS.contains(&name), "{name}");
        Check { name: name.to_owned(), status: Status::NotPossible { why: why.into() } }
    }

    /// A check that fails if there is a failure.
    pub fn from_failure(name: &str, failure: Option<Failure>) -> Self {
        failure.map_or_else(|| Check::passed(name), |f| Check::failed(name, f))
    }

    /// What is wrong, if it failed.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.status {
            Status::Failed(f) => Some(f),
            _ => None,
        }
    }
}

impl Failure {
    /// A failure without a particular element.
    pub fn new(what: impl Into<String>) -> Self {
        Failure { what: what.into(), worst: None, pattern: None }
    }
}

/// The outcome of judging one execution.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Every check, in a fixed order.
    pub checks: Vec<Check>,
    /// Sizes of errors, where values are approximate.
    pub metrics: Option<Metrics>,
    /// Why the case says nothing about the device, though no check failed.
    pub inconclusive: Option<String>,
}

impl Judgement {
    /// The checks that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|c| c.failure().is_some())
    }
}

/// What one execution left behind.
#[derive(Clone, Copy)]
pub struct Execution<'a> {
    /// The plan that was executed.
    pub plan: &'a Plan,
    /// Where the bytes lie.
    pub layout: &'a Layout,
    /// The input file as generated.
    pub inputs: &'a [u8],
    /// The result file as left behind.
    pub results: &'a [u8],
    /// What a build decoded, out of the result file; nothing where this crate decodes the weights.
    pub decoded: &'a Decoded,
}

/// Looks at what a build decoded, which every generated block makes finite: `None` where no build was asked.
pub fn decoded_check(plan: &Plan, decoded: &Decoded) -> Option<Check> {
    const NAME: &str = "decoded";
    let tensors = plan.tensors.iter().enumerate().filter(|(_, t)| t.role != Role::Output && t.ty.is_decoded_by_build());
    let mut check = None;
    for (i, t) in tensors {
        let values = decoded.tensor(i);
        let bad: usize = read_f32(values).map(|v| usize::from(!v.is_finite())).sum();
        let missing = t.elements() - values.len() / 4;
        let count = bad + missing;
        if count == 0 {
            check.get_or_insert_with(|| Check::passed(NAME));
            continue;
        }
        let what =
            format!("{}: {count} of {} {} values are not finite as the build decodes them", t.name, t.elements(), t.ty);
        let first = read_f32(values).enumerate().find(|(_, v)| !v.is_finite());
        let worst = first.map(|(at, value)| {
            let [columns, rows, planes, _] = t.shape;
            let (row, column) = (at / columns, at % columns);
            let place = [row % rows, row / rows % planes, row / rows / planes];
            let unwritten = if value.to_bits() == POISONS[0] { ", which was never written" } else { "" };
            format!("column {column} of row {place:?}: {value:e}{unwritten}")
        });
        return Some(Check::failed(NAME, Failure { worst, ..Failure::new(what) }));
    }
    check
}

/// The judgement of an execution whose weights the build did not decode as it must: nothing can be compared.
pub fn without_right_values(device: &Capabilities, decoded: Check, execution: &Execution<'_>) -> Judgement {
    let why = "the weights are not known: see decoded";
    let checks = vec![decoded, Check::not_possible("values", why), inputs_check(device, execution)];
    Judgement { checks, metrics: None, inconclusive: None }
}

/// Judges one execution of a case with its two runs. `decoded` is what [`decoded_check`] said of it: it has passed, or
/// no build was asked.
pub fn judge(
    device: &Capabilities,
    oracle: &dyn Oracle,
    decoded: Option<Check>,
    execution: &Execution<'_>,
) -> Judgement {
    let inputs = Inputs::new(execution.plan, execution.layout, execution.inputs).with_decoded(execution.decoded);
    let judge_run = |run| oracle.judge(&inputs, device, &RunBytes::new(execution, run));
    let mut findings = judge_run(0);
    let mut repeat = match oracle.repeated() {
        Some(output) => repeat_check(device, &outputs(execution, output)),
        None => Check::passed("repeat"),
    };
    let may_differ = repeat.failure().is_some() || oracle.repeated().is_none();
    if may_differ && execution.layout.results.len() > 1 && findings.has_no_failure() {
        // A wrong value in the second run must not hide behind a right one in the first.
        let second = judge_run(1);
        if !second.has_no_failure() {
            findings = second;
            if oracle.repeated().is_none() {
                repeat = Check::failed("repeat", Failure::new("the first run was right and the second was not"));
            }
        }
    }
    let mut checks: Vec<Check> = decoded.into_iter().collect();
    checks.extend(findings.checks);
    checks.push(inputs_check(device, execution));
    checks.push(match repeat.status {
        Status::Failed(f) if !device.deterministic => Check::not_possible(
            "repeat",
            format!("the device does not promise equal bits, and they differ: {}", f.what),
        ),
        status => Check { name: repeat.name, status },
    });
    let inconclusive = findings.metrics.as_ref().and_then(Metrics::says_nothing);
    let inconclusive = inconclusive.filter(|_| checks.iter().all(|c| c.failure().is_none()));
    Judgement { checks, metrics: findings.metrics, inconclusive }
}

/// The allocation of an output after each run.
fn outputs<'a>(e: &Execution<'a>, output: usize) -> Vec<&'a [u8]> {
    let len = e.plan.tensors[output].parent_bytes();
    e.layout.results.iter().filter_map(|run| run[output].map(|at| &e.results[at..at + len])).collect()
}

/// Both runs must leave the same bits, elements that neither wrote apart.
fn repeat_check(device: &Capabilities, runs: &[&[u8]]) -> Check {
    let [first, second] = runs else {
        return Check::not_possible("repeat", "the case was run once");
    };
    let words = |bytes| read_i32(bytes).map(|word| word as u32);
    let differs =
        |(i, (a, b)): (usize, (u32, u32))| (a != b && (a, b) != (POISONS[0], POISONS[1])).then_some((i, a, b));
    let different: Vec<_> = words(first).zip(words(second)).enumerate().filter_map(differs).collect();
    let Some((at, a, b)) = different.first() else { return Check::passed("repeat") };
    let scratch = if device.scratch_poison { ", scratch memory refilled between them" } else { "" };
    let what = format!(
        "{} of {} elements differ between two runs on the same inputs{scratch}",
        different.len(),
        words(first).len()
    );
    Check::failed(
        "repeat",
        Failure { worst: Some(format!("element {at}: {a:#010x}, then {b:#010x}")), ..Failure::new(what) },
    )
}

/// Inputs, margins included, must read back as they were written.
fn inputs_check(device: &Capabilities, e: &Execution<'_>) -> Check {
    const NAME: &str = "inputs";
    if !device.readable_inputs {
        return Check::not_possible(NAME, "the device's inputs can't be read back");
    }
    for (i, t) in e.plan.tensors.iter().enumerate().filter(|(_, t)| t.role != Role::Output) {
        let (Some(source), Some(back)) = (e.layout.source[i], e.layout.readback[i]) else { continue };
        let (before, after) = (&e.inputs[source..source + t.parent_bytes()], &e.results[back..back + t.parent_bytes()]);
        if before == after {
            continue;
        }
        let bad: Vec<usize> = (0..before.len()).filter(|b| before[*b] != after[*b]).collect();
        let (at, row) = (bad[0], bad[0] / t.parent_row_bytes());
        let place = match t.view_row(row) {
            Some(c) => format!("row {c:?} of the view"),
            None => "outside the view".to_owned(),
        };
        return Check::failed(
            NAME,
            Failure {
                what: format!("{}: {} of {} bytes changed", t.name, bad.len(), before.len()),
                worst: Some(format!("byte {at} ({place}): expected {:#04x}, got {:#04x}", before[at], after[at])),
                pattern: None,
            },
        );
    }
    Check::passed(NAME)
}
