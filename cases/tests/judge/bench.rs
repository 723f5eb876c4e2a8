//! A case with the outputs of a plain implementation, to be judged as they are or with a fault.

use conform_cases::case::Case;
use conform_cases::formats::{read_f32, read_i32};
use conform_cases::inputs::{Decoded, Inputs};
use conform_cases::judge::{Capabilities, Execution, Judgement, REPEATS, RunBytes, decoded_check, judge, poisons};
use conform_cases::plan::{Layout, Order, Plan, Step};

/// Weights that devices multiply with quantised activations, and columns enough for several blocks.
pub(crate) const QUANTISED: [(&str, usize); 8] = [
    ("q4_0", 320),
    ("q4_1", 320),
    ("q5_0", 320),
    ("q5_1", 320),
    ("q8_0", 320),
    ("mxfp4", 320),
    ("q4_K", 512),
    ("q6_K", 512),
];

pub(crate) const OWN: Capabilities = Capabilities::OWN;

/// A case with the outputs of a plain implementation in all runs.
pub(crate) struct Bench {
    pub(crate) case: Case,
    pub(crate) plan: Plan,
    pub(crate) layout: Layout,
    pub(crate) inputs: Vec<u8>,
    pub(crate) results: Vec<u8>,
    /// The device that is judged.
    pub(crate) device: Capabilities,
}

impl Bench {
    /// With the outputs of a loop over f32 sums.
    pub(crate) fn new(case: Case) -> Self {
        Self::with(case, OWN, plain)
    }

    /// With the outputs of some implementation, to be judged as those of a device.
    pub(crate) fn with(
        case: Case,
        device: Capabilities,
        implementation: impl Fn(&Plan, &Inputs<'_>) -> Vec<Option<u32>>,
    ) -> Self {
        let plan = case.plan();
        let layout = Layout::new(&plan, poisons(&plan, REPEATS).len());
        let mut inputs = vec![0; layout.input_bytes];
        case.fill_all(&plan, &layout, &mut inputs);
        Self { case, plan, layout, inputs, results: Vec::new(), device }.recomputed(implementation)
    }

    /// The same with the outputs of an implementation for the inputs as they are now.
    pub(crate) fn recomputed(self, implementation: impl Fn(&Plan, &Inputs<'_>) -> Vec<Option<u32>>) -> Self {
        let Bench { case, plan, layout, inputs, device, .. } = self;
        let mut results = vec![0; layout.result_bytes];
        for (i, t) in plan.tensors.iter().enumerate() {
            if let (Some(from), Some(to)) = (layout.source[i], layout.readback[i]) {
                let len = t.parent_bytes();
                results[to..to + len].copy_from_slice(&inputs[from..from + len]);
            }
        }
        // What a build might make of weights that only it decodes.
        for (t, at) in plan.tensors.iter().zip(&layout.decoded).filter_map(|(t, at)| Some((t, (*at)?))) {
            for (i, value) in results[at..at + 4 * t.elements()].chunks_exact_mut(4).enumerate() {
                value.copy_from_slice(&((i * 7919 % 1009) as f32 / 504.0 - 1.0).to_le_bytes());
            }
        }
        let decoded = Decoded::read(&plan, &layout, &results);
        let all: Vec<usize> = (0..plan.tensors.len()).collect();
        for (run, poison) in poisons(&plan, REPEATS).into_iter().enumerate() {
            for step in &plan.steps {
                let out = *step.tensors().last().unwrap();
                let at = layout.results[run][out].unwrap();
                // A step sees what those before it left behind.
                let (file, results_so_far) = (&inputs[..], &results.clone()[..]);
                let so_far = Execution {
                    plan: &plan,
                    layout: &layout,
                    inputs: file,
                    results: results_so_far,
                    decoded: &decoded,
                };
                let given = Inputs::new(&plan, &layout, &inputs).with_decoded(&decoded);
                let given = given.of_step(&all, Some(RunBytes::new(&so_far, run)));
                if let Step::Copy { from, .. } = step {
                    let bytes = given.tensor(*from).1.to_vec();
                    results[at..at + bytes.len()].copy_from_slice(&bytes);
                    continue;
                }
                let words = implementation(&Plan { steps: vec![step.clone()], ..plan.clone() }, &given);
                for (i, w) in words.iter().enumerate() {
                    results[at + 4 * i..at + 4 * i + 4].copy_from_slice(&w.unwrap_or(poison).to_le_bytes());
                }
            }
        }
        Bench { case, plan, layout, inputs, results, device }
    }

    pub(crate) fn id(id: &str) -> Self {
        Self::new(id.parse().unwrap())
    }

    pub(crate) fn judge(&self) -> Judgement {
        let decoded = Decoded::read(&self.plan, &self.layout, &self.results);
        let inputs = Inputs::new(&self.plan, &self.layout, &self.inputs).with_decoded(&decoded);
        let oracle = self.case.oracle(&inputs);
        let execution = Execution {
            plan: &self.plan,
            layout: &self.layout,
            inputs: &self.inputs,
            results: &self.results,
            decoded: &decoded,
        };
        judge(&self.device, &*oracle, decoded_check(&self.plan, &decoded), &execution)
    }

    /// Names of the failed checks, but for those of the output as a whole: one wrong element may fail them too.
    pub(crate) fn failed(&self) -> Vec<String> {
        self.all_failed().into_iter().filter(|name| !["scale", "bias", "noise"].contains(&name.as_str())).collect()
    }

    /// Names of all failed checks.
    pub(crate) fn all_failed(&self) -> Vec<String> {
        self.judge().failures().map(|c| c.name.clone()).collect()
    }

    /// Changes the words of the last output alike in all runs.
    pub(crate) fn edit(&mut self, change: impl Fn(&mut [u32])) {
        let out = self.plan.tensors.len() - 1;
        self.edit_tensor(out, change);
    }

    /// The same of any output.
    pub(crate) fn edit_tensor(&mut self, out: usize, change: impl Fn(&mut [u32])) {
        let len = self.plan.tensors[out].parent_bytes();
        for run in 0..self.layout.results.len() {
            let at = self.layout.results[run][out].unwrap();
            let bytes = &mut self.results[at..at + len];
            let mut words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
            change(&mut words);
            for (b, w) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                *b = w.to_le_bytes();
            }
        }
    }

    pub(crate) fn edit_floats(&mut self, change: impl Fn(&mut [f32])) {
        self.edit(|words| {
            let mut floats: Vec<f32> = words.iter().map(|w| f32::from_bits(*w)).collect();
            change(&mut floats);
            words.iter_mut().zip(floats).for_each(|(w, f)| *w = f.to_bits());
        });
    }

    pub(crate) fn nmse(&self) -> f64 {
        self.judge().metrics.unwrap().nmse
    }
}

/// The plan's step as a loop over f32 sums; `None` where nothing may be written.
pub(crate) fn plain(plan: &Plan, inputs: &Inputs<'_>) -> Vec<Option<u32>> {
    match plan.steps[0] {
        Step::MulMatId { weights, x, ids, out } => {
            let ((wt, _), (xt, xb), (it, ib)) = (inputs.tensor(weights), inputs.tensor(x), inputs.tensor(ids));
            let [m, used, n, _] = plan.tensors[out].shape;
            let k = wt.shape[0];
            let mut results = Vec::new();
            for token in 0..n {
                let experts: Vec<i32> = read_i32(&ib[it.row_range([token, 0, 0])]).collect();
                for (slot, expert) in experts.iter().enumerate().take(used) {
                    let row = xt.row_range([slot % xt.shape[1], token, 0]);
                    let activations: Vec<f32> = read_f32(&xb[row]).collect();
                    for row in 0..m {
                        let Some(e) = usize::try_from(*expert).ok().filter(|e| *e < wt.shape[2]) else {
                            results.push(None);
                            continue;
                        };
                        let mut w = vec![0.0; k];
                        inputs.row(weights, [row, e, 0]).decode(&mut w);
                        let sum = w.iter().zip(&activations).fold(0f32, |s, (w, x)| s + *w as f32 * x);
                        results.push(Some(sum.to_bits()));
                    }
                }
            }
            results
        }
        Step::Argsort { x, order, .. } => of_rows(inputs, x, |mut indices| {
            if order == Order::Desc {
                indices.reverse();
            }
            indices
        }),
        Step::TopK { x, out } => {
            let k = plan.tensors[out].shape[0];
            of_rows(inputs, x, |indices| indices[indices.len() - k..].to_vec())
        }
        ref step => panic!("no kernel is here for {step:?}"),
    }
}

/// What becomes of the ascending indices of each row of keys.
fn of_rows(inputs: &Inputs<'_>, x: usize, answer: impl Fn(Vec<u32>) -> Vec<u32>) -> Vec<Option<u32>> {
    let (t, bytes) = inputs.tensor(x);
    let rows = (0..t.parent_rows()).filter_map(|r| t.view_row(r));
    rows.flat_map(|at| {
        let keys: Vec<f32> = read_f32(&bytes[t.row_range(at)]).collect();
        let mut indices: Vec<u32> = (0..keys.len() as u32).collect();
        indices.sort_by(|a, b| keys[*a as usize].total_cmp(&keys[*b as usize]));
        answer(indices).into_iter().map(Some)
    })
    .collect()
}
