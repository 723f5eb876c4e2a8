//! Programs of several operations, each of which is a case of its own.
//!
//! A layer, or a sequence of calls, is put together from cases of single ops:
//! they say what shapes its tensors have, what they are filled with and what is
//! right. Nothing is computed twice: each step is judged by its own op's oracle
//! on what that step was given, the device's own earlier results among it, so
//! that a wrong step is named and those after it are not blamed.

mod merge;
mod oracle;

use std::sync::Arc;

use crate::cost::Cost;
use crate::judge::{Capabilities, Oracle};
use crate::model::Model;
use crate::op::{CaseType, Program};
use crate::plan::{Part, Place, Role, Step, Tensor};
use crate::stream::Stream;

use oracle::StepsOracle;

/// Seeds of what must be drawn anew though shape and recipe are the same.
const SEEDS: u64 = 0x5e;

/// A program, and what its tensors and steps are cases of. The seed is not part of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    program: Program,
    operations: Vec<Operation>,
    fills: Vec<Option<Fill>>,
    has_fresh_routing: bool,
}

/// One step as a case of its own.
#[derive(Clone, Debug)]
struct Operation {
    /// Position in the program's steps.
    at: usize,
    /// Its name in results.
    name: String,
    case: Arc<dyn CaseType>,
    /// The tensors that the case counts from 0, by their positions in the program; the last is the output.
    places: Vec<usize>,
}

/// What an input is filled with: a tensor of a case.
#[derive(Clone, Debug)]
pub(crate) struct Fill {
    /// The case.
    pub(crate) case: Arc<dyn CaseType>,
    /// Its tensor.
    pub(crate) tensor: usize,
    /// Draws with another seed, unless 0.
    pub(crate) seed: u64,
    /// Which rows: these are added to the coordinates in dimensions 1 to 3.
    pub(crate) from: [usize; 3],
}

impl Fill {
    /// The tensor as the case itself has it.
    pub(crate) fn of(case: Arc<dyn CaseType>, tensor: usize) -> Self {
        Fill { case, tensor, seed: 0, from: [0; 3] }
    }

    fn seed(&self, seed: u64) -> u64 {
        if self.seed == 0 { seed } else { Stream::new(seed, SEEDS).word(self.seed) }
    }
}

impl Script {
    /// Adds an input; the case that fills it says what it is like.
    pub(crate) fn input(&mut self, name: &str, fill: Fill) -> usize {
        let tensor = fill.case.program(0).tensors.swap_remove(fill.tensor);
        self.fills.push(Some(fill));
        self.push(Tensor { name: name.to_owned(), ..tensor })
    }

    /// Adds a tensor without bytes of its own.
    pub(crate) fn tensor(&mut self, tensor: Tensor) -> usize {
        self.fills.push(None);
        self.push(tensor)
    }

    /// Adds a tensor that has the shape of another and is written by steps.
    pub(crate) fn like(&mut self, name: &str, tensor: usize) -> usize {
        let like = self.program.tensors[tensor].clone();
        self.tensor(Tensor { name: name.to_owned(), role: Role::Output, ..like })
    }

    fn push(&mut self, tensor: Tensor) -> usize {
        self.program.tensors.push(tensor);
        self.program.tensors.len() - 1
    }

    /// Adds a step that is the only one of a case, on these inputs, and gives its output. Where an input holds what was
    /// copied into it, `contents` names the tensor that has the same bytes for good.
    pub(crate) fn call(&mut self, name: &str, case: Arc<dyn CaseType>, inputs: &[usize], contents: &[usize]) -> usize {
        let Program { tensors, steps, .. } = case.program(0);
        let last = tensors.len() - 1;
        let out = self.tensor(Tensor { name: name.to_owned(), ..tensors[last].clone() });
        let place = |i: usize| inputs.get(i).copied().unwrap_or(out);
        let at = self.program.steps.len();
        self.program.steps.extend(steps.into_iter().map(|step| placed(step, place)));
        let places = contents.iter().copied().chain([out]).collect();
        self.operations.push(Operation { at, name: name.to_owned(), case, places });
        out
    }

    /// Adds a copy of a whole allocation to another of the same shape.
    pub(crate) fn copy(&mut self, from: usize, to: usize) {
        let size = self.program.tensors[from].parent_bytes();
        let part = Part { tensor: to, here: Place::at(0), there: Place::at(0), size, count: 1 };
        self.program.steps.push(Step::Copy { from, parts: vec![part] });
    }

    /// Asks devices to sort slots anew for every matmul.
    pub(crate) fn with_fresh_routing(&mut self, is_fresh: bool) {
        self.has_fresh_routing = is_fresh;
    }

    /// The program.
    pub(crate) fn program(&self) -> Program {
        Program { fresh_routing: self.has_fresh_routing, ..self.program.clone() }
    }

    /// As [`CaseType::fill_row`].
    pub(crate) fn fill_row(&self, seed: u64, tensor: usize, at: [usize; 3], row: &mut [u8]) {
        if let Some(fill) = &self.fills[tensor] {
            let at = std::array::from_fn(|d| at[d] + fill.from[d]);
            fill.case.fill_row(fill.seed(seed), fill.tensor, at, row);
        }
    }

    /// As [`CaseType::fill_margin`].
    pub(crate) fn fill_margin(&self, seed: u64, tensor: usize, bytes: &mut [u8]) {
        if let Some(fill) = &self.fills[tensor] {
            fill.case.fill_margin(fill.seed(seed), fill.tensor, bytes);
        }
    }

    /// What all steps cost together; inputs are counted once.
    pub(crate) fn cost(&self) -> Cost {
        let inputs = self.program.tensors.iter().filter(|t| t.is_input());
        let costs = || self.operations.iter().map(|o| o.case.cost());
        Cost {
            operations: costs().map(|cost| cost.operations).sum(),
            input_elements: inputs.map(|t| t.parent.iter().product::<usize>() as u64).sum(),
            oracle_bytes: costs().map(|cost| cost.oracle_bytes).sum(),
        }
    }

    /// The precision model of the first step that has one.
    pub(crate) fn model(&self, device: &Capabilities) -> Option<Model> {
        self.operations.iter().find_map(|o| o.case.model(device))
    }

    /// True if every step is within what foreign devices promise.
    pub(crate) fn binds_foreign_devices(&self) -> bool {
        self.operations.iter().all(|o| o.case.binds_foreign_devices())
    }

    /// The oracle of all steps.
    pub(crate) fn oracle(&self, seed: u64) -> Box<dyn Oracle> {
        Box::new(StepsOracle::new(self, seed))
    }

    /// A line for each operation.
    pub(crate) fn describe(&self) -> Vec<String> {
        let line =
            |o: &Operation| format!("as case   step {} ({}) is {}/{}", o.at, o.name, o.case.op(), o.case.params());
        self.operations.iter().map(line).collect()
    }
}

/// A step with its tensors in other places.
fn placed(step: Step, place: impl Fn(usize) -> usize) -> Step {
    match step {
        Step::MulMatId { weights, x, ids, out } => {
            Step::MulMatId { weights: place(weights), x: place(x), ids: place(ids), out: place(out) }
        }
        Step::Argsort { x, out, order } => Step::Argsort { x: place(x), out: place(out), order },
        Step::TopK { x, out } => Step::TopK { x: place(x), out: place(out) },
        // No op of a single step moves bytes.
        moves => moves,
    }
}
