//! A case small enough to be checked by hand.

use std::time::Duration;

use conform_cases::formats::{ElemType, read_i32};
use conform_cases::plan::{Layout, Order, Plan, Role, Step, Tensor};
use conform_harness::worker::{Job, Shared};

/// What outputs hold before each run.
pub(crate) const POISONS: [u32; 2] = [0x7fc0_0001, 0xffc0_0002];

/// A small case with its bytes, ready to be executed.
pub(crate) struct Case {
    pub(crate) plan: Plan,
    pub(crate) layout: Layout,
    pub(crate) inputs: Shared,
    pub(crate) results: Shared,
}

impl Case {
    /// Sorts a rotation of 0, 1, .. 6 that depends on `number`.
    pub(crate) fn new(name: &str, number: usize) -> Self {
        let margins = [true, false, false, false];
        let tensors = vec![
            Tensor::whole("x", ElemType::F32, [7, 1, 1, 1], Role::Input).with_margins(margins),
            Tensor::whole("out", ElemType::I32, [7, 1, 1, 1], Role::Output),
        ];
        let steps = vec![Step::Argsort { x: 0, out: 1, order: Order::Asc }];
        let plan = Plan { case: format!("argsort/{name}-{number}"), tensors, steps, ..Plan::default() };
        let layout = Layout::new(&plan, POISONS.len());
        let mut inputs = Shared::create(layout.input_bytes).unwrap();
        for i in 0..7 {
            let value = ((i + number) % 7) as f32;
            inputs.bytes_mut()[4 * (i + 1)..][..4].copy_from_slice(&value.to_le_bytes());
        }
        let results = Shared::create(layout.result_bytes).unwrap();
        Case { plan, layout, inputs, results }
    }

    pub(crate) fn job(&mut self, deadline: Duration) -> Job<'_> {
        let Case { plan, layout, inputs, results } = self;
        Job { plan, layout, poisons: &POISONS, inputs, results, deadline, known_logs: &[] }
    }

    /// The output of one run.
    pub(crate) fn output(&self, run: usize) -> Vec<i32> {
        let at = self.layout.results[run][1].unwrap();
        read_i32(&self.results.copy(at..at + 7 * 4).unwrap()).collect()
    }

    pub(crate) fn assert_right(&self, number: usize) {
        for run in 0..POISONS.len() {
            let want: Vec<i32> = (0..7).map(|v| (v + 7 - (number % 7) as i32) % 7).collect();
            assert_eq!(self.output(run), want, "{} run {run}", self.plan.case);
        }
        let at = self.layout.readback[0].unwrap();
        let bytes = 9 * 4;
        assert_eq!(self.results.copy(at..at + bytes).unwrap(), self.inputs.bytes()[..bytes]);
    }
}
