//! The right values of a program: those of each step for what that step was given.

use std::sync::{Arc, Mutex, PoisonError};

use super::merge::Merged;
use super::{Operation, Script};
use crate::inputs::Inputs;
use crate::judge::values::Expected;
use crate::judge::{Capabilities, Findings, Oracle, RunBytes};

/// Right values that are kept of one step. Devices mostly agree on what they hand from step to step, to the bit.
const KEPT: usize = 8;

pub(super) struct StepsOracle {
    operations: Vec<Operation>,
    /// By operation.
    known: Vec<Mutex<Vec<Known>>>,
    /// Outputs that hold the same bits after each run.
    repeated: Vec<usize>,
    seed: u64,
}

/// The right values of a step for certain inputs.
struct Known {
    /// The bytes of those inputs that earlier steps wrote.
    given: Vec<Vec<u8>>,
    oracle: Arc<dyn Oracle>,
}

impl StepsOracle {
    pub(super) fn new(script: &Script, seed: u64) -> Self {
        let operations = script.operations.clone();
        let known = operations.iter().map(|_| Mutex::default()).collect();
        let repeated = operations.iter().filter_map(|o| o.places.last().copied()).collect();
        StepsOracle { operations, known, repeated, seed }
    }

    /// The oracle of a step, whose inputs these are.
    fn oracle(&self, at: usize, inputs: &Inputs<'_>) -> Arc<dyn Oracle> {
        let operation = &self.operations[at];
        let given: Vec<&[u8]> = operation.results(inputs).map(|i| inputs.tensor(i).1).collect();
        let mut known = self.known[at].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.iter().find(|known| known.given == given) {
            return known.oracle.clone();
        }
        let oracle: Arc<dyn Oracle> = operation.case.oracle(self.seed, inputs).into();
        if known.len() < KEPT {
            let given = given.into_iter().map(<[u8]>::to_vec).collect();
            known.push(Known { given, oracle: oracle.clone() });
        }
        oracle
    }
}

impl Operation {
    /// Inputs, as the step counts them, that earlier steps wrote.
    fn results(&self, inputs: &Inputs<'_>) -> impl Iterator<Item = usize> {
        let plan = inputs.plan;
        let inputs = &self.places[..self.places.len() - 1];
        inputs
            .iter()
            .enumerate()
            .filter(|(_, place)| plan.tensors[plan.allocation(**place)].is_output())
            .map(|(i, _)| i)
    }
}

impl Oracle for StepsOracle {
    fn repeated(&self) -> Vec<usize> {
        self.repeated.clone()
    }

    /// Only of those steps whose inputs are known before any device has run.
    fn prepare(&self, inputs: &Inputs<'_>, device: &Capabilities) {
        for (at, operation) in self.operations.iter().enumerate() {
            if operation.results(inputs).next().is_none() {
                let inputs = inputs.of_step(&operation.places, None);
                self.oracle(at, &inputs).prepare(&inputs, device);
            }
        }
    }

    fn judge(&self, inputs: &Inputs<'_>, device: &Capabilities, run: &RunBytes<'_>) -> Findings {
        let mut all = Merged::default();
        for (at, operation) in self.operations.iter().enumerate() {
            let inputs = inputs.of_step(&operation.places, Some(*run));
            let run = run.of_step(&operation.places);
            let findings = self.oracle(at, &inputs).judge(&inputs, device, &run);
            all.add(operation.at, &operation.name, findings);
        }
        all.findings()
    }

    /// What a step should give depends on what the device handed it.
    fn expected(&self, _: &Inputs<'_>, _: &Capabilities) -> Vec<Expected> {
        Vec::new()
    }
}
