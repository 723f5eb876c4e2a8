//! Comparing what a device left behind with what is right.
//!
//! Every property is a named check that passed, failed or was not possible on
//! this device. The checks of values belong to the op's [`Oracle`]; those that
//! hold for any op (everything written, inputs unchanged, repeatable) are here.

mod accesses;
pub mod best;
mod guards;
pub mod pattern;
pub mod permutation;
mod read;
mod rows;
mod runs;
pub mod values;

use serde::{Deserialize, Serialize};

use crate::formats::read_f32;
use crate::inputs::{Decoded, Inputs};
use crate::model::{Kernels, Model};
use crate::plan::{Layout, Plan};
pub use accesses::{Complaints, accesses_check};
pub use guards::{Damage, Guards, guards_check};
use runs::{difference, inputs_check, neighbours_check, same_bits};
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
    /// Its memory has guard bytes on both sides of every allocation, which are looked at after the last run.
    pub guards: bool,
    /// It watches every access of its kernels: what it complains of fails the case, whatever came out.
    pub watched: bool,
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
        guards: false,
        watched: false,
        deterministic: true,
        flushes_subnormals: false,
        flushes_f16: false,
    };
}

/// Every check there is.
pub const CHECKS: [&str; 36] = [
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
    "neighbours",
    "guards",
    "accesses",
    "repeat",
    "stepwise",
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
    "beside",
    "copy",
    "logits",
    "others",
    "partial",
];

/// Outputs are filled with these before the runs, a different one each time: as f32 they are NaN with a payload
/// that no arithmetic produces, as i32 they are no index.
pub const POISONS: [u32; 2] = [0xffc0_dea5, 0x7fd1_5ea5];

/// How often a case is run with all operations in one go, unless more is asked for.
pub const REPEATS: usize = 2;

/// What each run of a plan begins with: `repeats` of them, and one more where operations can also be run one by one.
pub fn poisons(plan: &Plan, repeats: usize) -> Vec<u32> {
    let runs = repeats + usize::from(plan.has_several_operations_in_a_row());
    (0..runs).map(poison_of).collect()
}

/// What outputs are filled with before the `run`-th run.
fn poison_of(run: usize) -> u32 {
    POISONS[run % POISONS.len()]
}

/// The run, of so many, in which operations are run one by one: the last, where that can differ from all in one go. A
/// backend sees the whole graph in the others, and may fuse what it likes.
pub fn one_by_one(plan: &Plan, runs: usize) -> Option<usize> {
    let last = runs.checked_sub(1).filter(|last| *last > 0)?;
    plan.has_several_operations_in_a_row().then_some(last)
}

/// The right values of one case.
pub trait Oracle: Send + Sync {
    /// The output tensors that must hold the same bits after each run. Without one every run is judged.
    fn repeated(&self) -> Vec<usize>;

    /// Computes what judging a device needs, as far as it is not known yet: it can be done while the device computes.
    fn prepare(&self, _inputs: &Inputs<'_>, _device: &Capabilities) {}

    /// Judges what one run left behind.
    fn judge(&self, inputs: &Inputs<'_>, device: &Capabilities, run: &RunBytes<'_>) -> Findings;

    /// Value, bound and class of every element of the only output, for dumps; nothing where they are not known before a
    /// device has run, or no values are judged.
    fn expected(&self, inputs: &Inputs<'_>, device: &Capabilities) -> Vec<Expected>;
}

/// What one run left behind: outputs, and the host memory that steps wrote.
#[derive(Clone, Copy)]
pub struct RunBytes<'a> {
    execution: &'a Execution<'a>,
    run: usize,
    /// The tensors of one step, by their positions in the plan: a step is judged as a case of its own.
    places: Option<&'a [usize]>,
    /// What outputs, and host memory that steps write, were filled with before the run.
    pub poison: u32,
}

impl<'a> RunBytes<'a> {
    /// The `run`-th run of an execution.
    pub fn new(execution: &'a Execution<'a>, run: usize) -> Self {
        RunBytes { execution, run, places: None, poison: poison_of(run) }
    }

    /// The same where tensors are counted as one step does.
    #[must_use]
    pub fn of_step(self, places: &'a [usize]) -> Self {
        RunBytes { places: Some(places), ..self }
    }

    /// An output's allocation.
    pub fn tensor(&self, output: usize) -> &'a [u8] {
        let output = self.places.map_or(output, |places| places[output]);
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
#[serde(try_from = "read::Written")]
pub struct Check {
    /// The check's name.
    pub name: String,
    /// How it went.
    #[serde(flatten)]
    pub status: Status,
}

/// How a check went.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// One line: how many elements, and what is wrong with them.
    pub what: String,
    /// The worst element: where, expected, got, allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst: Option<String>,
    /// What the wrong elements have in common.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
}

/// Sizes of errors over one output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    #[serde(deserialize_with = "read::number_or_infinite")]
    pub ratio: f64,
    /// Share of judged elements that are exact or whose bound is below half of the value: what a pass is worth.
    pub power: f64,
    /// Sum of squared errors / sum of squared values, the field's habit.
    #[serde(deserialize_with = "read::number_or_infinite")]
    pub nmse: f64,
    /// Largest absolute error.
    #[serde(deserialize_with = "read::number_or_infinite")]
    pub max_abs: f64,
    /// Largest relative error where the right value is not zero.
    #[serde(deserialize_with = "read::number_or_infinite")]
    pub max_rel: f64,
    /// Largest error in units in the last place of the right value.
    #[serde(deserialize_with = "read::number_or_infinite")]
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
    let tensors = plan.tensors.iter().enumerate().filter(|(_, t)| t.is_input() && t.ty.is_decoded_by_build());
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
    let (repeated, runs) = (oracle.repeated(), execution.layout.results.len());
    let stepwise = one_by_one(execution.plan, runs);
    let repeats = (1..runs).filter(|run| Some(*run) != stepwise);
    let mut repeat = match repeats.clone().next() {
        _ if repeated.is_empty() => Check::passed("repeat"),
        None => Check::not_possible("repeat", "the case was run once"),
        Some(_) => same_bits("repeat", device, execution, &repeated, repeats),
    };
    let steps = stepwise.map(|run| same_bits("stepwise", device, execution, &repeated, run..run + 1));
    // A wrong value in a later run must not hide behind a right one in the first.
    let others = (1..runs).filter(|run| repeated.is_empty() || difference(execution, &repeated, *run).is_some());
    for run in others {
        if !findings.has_no_failure() {
            break;
        }
        let other = judge_run(run);
        if !other.has_no_failure() {
            findings = other;
            if repeated.is_empty() {
                repeat = Check::failed("repeat", Failure::new("the first run was right and the second was not"));
            }
        }
    }
    let mut checks: Vec<Check> = decoded.into_iter().collect();
    checks.extend(findings.checks);
    checks.push(inputs_check(device, execution));
    checks.extend(neighbours_check(device, execution));
    checks.extend([Some(repeat), steps].into_iter().flatten().map(|check| match check.status {
        Status::Failed(f) if !device.deterministic => Check::not_possible(
            &check.name,
            format!("the device does not promise equal bits, and they differ: {}", f.what),
        ),
        status => Check { name: check.name, status },
    }));
    let inconclusive = findings.metrics.as_ref().and_then(Metrics::says_nothing);
    let inconclusive = inconclusive.filter(|_| checks.iter().all(|c| c.failure().is_none()));
    Judgement { checks, metrics: findings.metrics, inconclusive }
}
