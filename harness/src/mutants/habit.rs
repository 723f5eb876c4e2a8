//! The field's habit, run on mutants: what would the usual test of backends have seen?
//!
//! Shapes of a well-known backend test, distinct experts in random order,
//! uniform data, one call into fresh memory; right is what has a normalised mean
//! squared error over the whole output of at most [`ALLOWED`].

use std::time::Duration;

use conform_cases::case::Case;
use conform_cases::formats::{read_f32, read_i32};
use conform_cases::inputs::Inputs;
use conform_cases::judge::Capabilities;
use conform_cases::plan::{Layout, Plan, Step};
use conform_cases::profile::Profile;
use serde::Serialize;

use super::hunt::Unusable;
use crate::worker::protocol::Outcome;
use crate::worker::{Attempt, Job, Memory, Pooled, Supervisor};

/// The largest error that the habit lets pass.
pub const ALLOWED: f64 = 5e-4;

/// What outputs and scratch hold before the call: memory that nobody has used, as a fresh process gets it.
const FRESH: [u32; 1] = [0];

/// No case of the habit has more keys or weights and activations, or more operations: it is run on every mutant.
const MOST_INPUT: u64 = 1 << 21;
const MOST_OPERATIONS: u64 = 40_000_000;

/// What the habit sees of a mutant.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// A case has too large an error, and not without the fault.
    Caught {
        /// Its id.
        case: String,
        /// Its error; none where the call failed, or left something that is no number.
        nmse: Option<f64>,
    },
    /// Every case passes.
    Missed {
        /// How many.
        cases: usize,
        /// The largest error among them.
        worst: f64,
    },
}

/// The cases of the habit for one op, ready to be run: inputs and right values are the same for all mutants.
pub struct Habit {
    cases: Vec<Ready>,
}

struct Ready {
    plan: Plan,
    layout: Layout,
    inputs: Pooled,
    right: Vec<f64>,
    memory: Memory,
}

impl Habit {
    /// Prepares the cases of an op. The error is one line: there is not the memory for it.
    pub fn of(op: &str, memory: &Memory) -> Result<Self, String> {
        let cases = cases(op).map(|case| Ready::new(&case, memory));
        Ok(Habit { cases: cases.collect::<Result<_, _>>()? })
    }

    /// True for ops that the usual test does not have.
    pub fn is_empty(&self) -> bool {
        self.cases.is_empty()
    }

    /// Runs the cases on a mutated device, and those that fail on the healthy one as well.
    pub fn look(
        &self,
        mutated: &mut Supervisor,
        healthy: &mut Supervisor,
        patience: Duration,
    ) -> Result<Seen, Unusable> {
        let (mut passed, mut worst) = (0, 0.0f64);
        for case in &self.cases {
            // What the device does not do is no case of its.
            let Some(error) = case.error(mutated, patience)? else { continue };
            if error <= ALLOWED {
                passed += 1;
                worst = worst.max(error);
            } else if case.error(healthy, patience)?.is_some_and(|error| error <= ALLOWED) {
                let nmse = error.is_finite().then_some(error);
                return Ok(Seen::Caught { case: case.plan.case.clone(), nmse });
            }
        }
        Ok(Seen::Missed { cases: passed, worst })
    }
}

/// Cases of the grid of ggml's own backend test, as many as every mutant can be asked: of the shapes with 512 rows and 256
/// columns a fifth for MXFP4, which most kernels are for, and a tenth for each other type; of sorts and top-ks a fourth.
fn cases(op: &str) -> impl Iterator<Item = Case> {
    let wanted = move |case: &Case, kind: &str| {
        let (plan, cost) = (case.plan(), case.body().cost());
        let is_of_shape = match plan.steps[0] {
            Step::MulMatId { weights, .. } => {
                let t = &plan.tensors[weights];
                t.ty.name() == kind && t.shape[..2] == [256, 512] && !plan.case.contains("data=loud")
            }
            Step::Argsort { .. } => true,
            Step::TopK { .. } => plan.case.contains("data=distinct"),
            _ => false,
        };
        is_of_shape && cost.input_elements <= MOST_INPUT && cost.operations <= MOST_OPERATIONS
    };
    let of_op: Vec<Case> =
        Profile::GgmlGrid.cases(Profile::FIXED_SEED, 0).filter(|case| case.body().op() == op).collect();
    let kinds: &[(&str, usize)] = match op {
        "mul_mat_id" => {
            &[("mxfp4", 5), ("f32", 10), ("f16", 10), ("q8_0", 10), ("q4_0", 10), ("q4_1", 10), ("q4_K", 10)]
        }
        _ => &[("", 4)],
    };
    kinds.iter().flat_map(move |(kind, every)| {
        let of_kind = of_op.iter().filter(|case| wanted(case, kind));
        of_kind.step_by(*every).cloned().collect::<Vec<_>>()
    })
}

impl Ready {
    fn new(case: &Case, memory: &Memory) -> Result<Self, String> {
        let plan = case.plan();
        let layout = Layout::new(&plan, FRESH.len());
        let mut inputs = memory.inputs.take(layout.input_bytes).map_err(|e| e.to_string())?;
        case.fill_all(&plan, &layout, inputs.bytes_mut());
        let view = Inputs::new(&plan, &layout, inputs.bytes());
        let oracle = case.oracle(&view);
        let right = oracle.expected(&view, &Capabilities::OWN).iter().map(|e| e.value).collect();
        Ok(Ready { plan, layout, inputs, right, memory: memory.clone() })
    }

    /// The error of one call; infinite where it failed, none where the device does not do this.
    fn error(&self, device: &mut Supervisor, patience: Duration) -> Result<Option<f64>, Unusable> {
        let mut results = self.memory.results.take(self.layout.result_bytes).map_err(|e| e.to_string())?;
        let mut job = Job {
            plan: &self.plan,
            layout: &self.layout,
            poisons: &FRESH,
            inputs: &self.inputs,
            results: &mut results,
            deadline: patience,
            known_logs: &[],
        };
        match device.attempt(&mut job) {
            Attempt::Ran { outcome: Outcome::Done {}, .. } => Ok(Some(self.compare(results.bytes()))),
            Attempt::Ran { outcome: Outcome::Unsupported { .. }, .. } => Ok(None),
            Attempt::Ran { outcome: Outcome::Failed { .. }, .. } | Attempt::Died(_) => Ok(Some(f64::INFINITY)),
            Attempt::Unavailable(why) => Err(why.into()),
            Attempt::Wedged(why) => {
                results.abandon();
                self.inputs.abandon();
                Err(Unusable { why, wedged: true })
            }
        }
    }

    fn compare(&self, results: &[u8]) -> f64 {
        let (Step::MulMatId { out, .. } | Step::Argsort { out, .. } | Step::TopK { out, .. }) = self.plan.steps[0]
        else {
            return f64::INFINITY;
        };
        let Some(at) = self.layout.results[0][out] else { return f64::INFINITY };
        let bytes = &results[at..at + self.plan.tensors[out].parent_bytes()];
        match self.plan.steps[0] {
            Step::MulMatId { .. } => nmse(read_f32(bytes).map(f64::from), self.right.iter().copied()),
            Step::Argsort { .. } => nmse(read_i32(bytes).map(f64::from), self.right.iter().copied()),
            // In any order: rows are compared as sets.
            Step::TopK { .. } => {
                let k = self.plan.tensors[out].shape[0];
                let sorted = |all: Vec<f64>| {
                    let mut all = all;
                    all.chunks_mut(k).for_each(|row| row.sort_by(f64::total_cmp));
                    all
                };
                let got = sorted(read_i32(bytes).map(f64::from).collect());
                nmse(got.into_iter(), sorted(self.right.clone()).into_iter())
            }
            _ => f64::INFINITY,
        }
    }
}

/// Normalised mean squared error: Σ(got − right)² / Σright². Infinite where an output is no number.
fn nmse(got: impl Iterator<Item = f64>, right: impl Iterator<Item = f64>) -> f64 {
    let (mut error, mut value) = (0.0, 0.0);
    for (got, right) in got.zip(right) {
        error += (got - right) * (got - right);
        value += right * right;
    }
    let nmse = if error == 0.0 { 0.0 } else { error / value };
    if nmse.is_nan() { f64::INFINITY } else { nmse }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_habit_has_its_shapes() {
        let ids = |op| cases(op).map(|c| c.id()).collect::<Vec<_>>();
        let products = ids("mul_mat_id");
        for w in ["f32", "f16", "q8_0", "q4_0", "q4_1", "q4_K", "mxfp4"] {
            let of_type = products.iter().filter(|id| id.contains(&format!("w={w},"))).count();
            assert!((6..=14).contains(&of_type), "{w}: {of_type}");
        }
        assert!(products.iter().all(|id| id.contains("/route=shuffle,data=uniform/")));
        for n in [1, 4, 5, 17, 32, 129] {
            assert!(products.iter().any(|id| id.contains("w=mxfp4") && id.contains(&format!(",n={n},"))), "{n}");
        }
        assert!(ids("argsort").len() >= 10 && ids("top_k").len() >= 30);
    }

    #[test]
    fn errors_are_relative_to_the_whole() {
        let right = [3.0, 4.0];
        assert_eq!(nmse([3.0, 4.0].into_iter(), right.into_iter()), 0.0);
        assert!((nmse([3.0, 4.5].into_iter(), right.into_iter()) - 0.01).abs() < 1e-12);
        assert!((nmse(right.map(|v| v * 1.02).into_iter(), right.into_iter()) - 4e-4).abs() < 1e-9);
        assert_eq!(nmse([f64::NAN, 4.0].into_iter(), right.into_iter()), f64::INFINITY);
    }
}
