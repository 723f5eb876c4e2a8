//! Small plans with their inputs, and what a plain loop makes of them.

use std::time::Duration;

use conform_cases::formats::{ElemType, Parts, read_f32, read_i32};
use conform_cases::plan::{Layout, Order, Plan, Role, Step, Tensor};
use conform_harness::worker::{Job, Shared};

const POISONS: [u32; 2] = [0xffc0_dea5, 0x7fd1_5ea5];

/// Activations may be rounded to 8 bits with one scale for 32 of them, and sums to 11 bits: no more than this share of
/// the sum of magnitudes.
const LOOSE: f64 = 0.02;

/// A plan of one step, ready to be executed.
pub(crate) struct Small {
    pub(crate) plan: Plan,
    layout: Layout,
    inputs: Shared,
    results: Shared,
}

/// What tensors are views.
pub(crate) const WHOLE: [bool; 4] = [false; 4];

impl Small {
    /// A mul_mat_id of 4 experts, 2 used by each of 5 tokens, with margins of weights, activations and ids.
    pub(crate) fn product(ty: ElemType, b: usize, margins: [[bool; 4]; 3]) -> Self {
        let (k, m, experts, used, n) = (256, 64, 4, 2, 5);
        let tensors = vec![
            Tensor::whole("weights", ty, [k, m, experts, 1], Role::Weights).with_margins(margins[0]),
            Tensor::whole("x", ElemType::F32, [k, b, n, 1], Role::Input).with_margins(margins[1]),
            Tensor::whole("ids", ElemType::I32, [used, n, 1, 1], Role::Input).with_margins(margins[2]),
            Tensor::whole("out", ElemType::F32, [m, used, n, 1], Role::Output),
        ];
        let mut small = Self::new("mul_mat_id", tensors, Step::MulMatId { weights: 0, x: 1, ids: 2, out: 3 });
        small.fill(2, |i| (i % experts) as f32);
        // Distinct experts within a token, whatever the margins.
        for token in 0..n {
            small.set_ids(token, [(token % 4) as i32, ((token + 1 + token / 4) % 4) as i32]);
        }
        small
    }

    /// An argsort of rows of 33.
    pub(crate) fn sort(order: Order) -> Self {
        let shape = [33, 3, 2, 1];
        let tensors = vec![
            Tensor::whole("x", ElemType::F32, shape, Role::Input),
            Tensor::whole("out", ElemType::I32, shape, Role::Output),
        ];
        Self::new("argsort", tensors, Step::Argsort { x: 0, out: 1, order })
    }

    fn new(name: &str, tensors: Vec<Tensor>, step: Step) -> Self {
        let plan = Plan { case: name.to_owned(), tensors, steps: vec![step], ..Plan::default() };
        let layout = Layout::new(&plan, POISONS.len());
        let inputs = Shared::create(layout.input_bytes).unwrap();
        let results = Shared::create(layout.result_bytes).unwrap();
        let mut small = Small { plan, layout, inputs, results };
        for i in 0..small.plan.tensors.len() {
            if small.plan.tensors[i].role != Role::Output {
                small.fill(i, |at| ((at * 7919 + i * 31) % 1009) as f32 / 504.0 - 1.0);
            }
        }
        small
    }

    /// Fills a tensor's whole allocation: blocked types get codes and one scale, others the value.
    fn fill(&mut self, tensor: usize, value: impl Fn(usize) -> f32) {
        let t = &self.plan.tensors[tensor];
        let at = self.layout.source[tensor].unwrap();
        let bytes = &mut self.inputs.bytes_mut()[at..at + t.parent_bytes()];
        for (i, block) in bytes.chunks_exact_mut(t.ty.block_bytes()).enumerate() {
            match t.ty {
                ElemType::F32 => block.copy_from_slice(&value(i).to_le_bytes()),
                ElemType::I32 => block.copy_from_slice(&(value(i) as i32).to_le_bytes()),
                ElemType::F16 => block.copy_from_slice(&half(value(i)).to_le_bytes()),
                ElemType::Bf16 => block.copy_from_slice(&((value(i).to_bits() >> 16) as u16).to_le_bytes()),
                ty => {
                    let codes = std::array::from_fn(|j| (value(256 * i + j) * 127.0) as i8 as u8);
                    // 1/16, as f16 and as a power of two.
                    let scale = if ty == ElemType::Mxfp4 { 123 } else { 0x2c00 };
                    let parts = Parts { scale, min: 0x2c00, sub_mins: [3; 8], codes, ..Parts::default() };
                    ty.encode_block(&parts, block);
                }
            }
        }
    }

    /// Sets the experts of one token.
    pub(crate) fn set_ids(&mut self, token: usize, ids: [i32; 2]) {
        let at = self.layout.source[2].unwrap() + self.plan.tensors[2].row_range([token, 0, 0]).start;
        for (i, id) in ids.into_iter().enumerate() {
            self.inputs.bytes_mut()[at + 4 * i..][..4].copy_from_slice(&id.to_le_bytes());
        }
    }

    pub(crate) fn job(&mut self, deadline: Duration) -> Job<'_> {
        let Small { plan, layout, inputs, results } = self;
        Job { plan, layout, poisons: &POISONS, inputs, results, deadline, known_logs: &[] }
    }

    /// A row of an input, decoded.
    fn row(&self, tensor: usize, at: [usize; 3]) -> Vec<f64> {
        let t = &self.plan.tensors[tensor];
        let from = self.layout.source[tensor].unwrap();
        let mut row = vec![0.0; t.shape[0]];
        t.ty.decode(&self.inputs.bytes()[from..][t.row_range(at)], &mut row);
        row
    }

    fn output(&self, run: usize) -> Vec<u8> {
        let out = self.plan.tensors.len() - 1;
        let at = self.layout.results[run][out].unwrap();
        self.results.copy(at..at + self.plan.tensors[out].parent_bytes()).unwrap()
    }

    /// Panics where the results of a run are not what they should be.
    pub(crate) fn check(&self, device: &str) {
        for run in 0..POISONS.len() {
            match self.plan.steps[0] {
                Step::MulMatId { .. } => self.check_product(device, run),
                Step::Argsort { order, .. } => self.check_sort(device, run, order),
                _ => unreachable!("no plan here has it"),
            }
        }
    }

    fn check_product(&self, device: &str, run: usize) {
        let (ty, [m, _, n, _]) = (self.plan.tensors[0].ty, self.plan.tensors[3].shape);
        let mut got = read_f32(&self.output(run)).collect::<Vec<_>>().into_iter();
        for token in 0..n {
            let ids = self.row(2, [token, 0, 0]);
            for (slot, id) in ids.into_iter().enumerate() {
                let x = self.row(1, [slot % self.plan.tensors[1].shape[1], token, 0]);
                for row in 0..m {
                    let w = self.row(0, [row, id as usize, 0]);
                    let (want, size) =
                        w.iter().zip(&x).fold((0.0, 0.0), |(y, s), (w, x)| (y + w * x, s + (w * x).abs()));
                    let got = f64::from(got.next().unwrap());
                    let place = format!("{device} {ty} run {run}: token {token}, slot {slot}, row {row}");
                    assert!((got - want).abs() <= LOOSE * size, "{place}: {got}, expected {want} of magnitude {size}");
                }
            }
        }
    }

    fn check_sort(&self, device: &str, run: usize, order: Order) {
        let [cols, rows, planes, _] = self.plan.tensors[0].shape;
        let got: Vec<i32> = read_i32(&self.output(run)).collect();
        for (i, got) in got.chunks(cols).enumerate() {
            assert!(i < rows * planes);
            let keys = self.row(0, [i % rows, i / rows, 0]);
            let sorted: Vec<f64> = got.iter().map(|at| keys[usize::try_from(*at).unwrap()]).collect();
            let in_order = sorted.is_sorted_by(|a, b| if order == Order::Asc { a <= b } else { a >= b });
            let mut places = got.to_vec();
            places.sort_unstable();
            assert!(in_order && places.iter().zip(0..).all(|(a, b)| *a == b), "{device} run {run}: row {i}: {got:?}");
        }
    }
}

/// Small multiples of 1/504 as f16 bits, rounded toward zero: exactness does not matter here.
fn half(value: f32) -> u16 {
    let bits = value.to_bits();
    let exponent = ((bits >> 23) & 0xff) as i32 - 112;
    let magnitude = if exponent <= 0 { 0 } else { (exponent as u32) << 10 | (bits >> 13) & 0x3ff };
    (bits >> 16 & 0x8000 | magnitude) as u16
}
