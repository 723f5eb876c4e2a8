//! Devices that do something else to the numbers than ours: the probe must say what, and a failure must name the looser
//! model that they would need.

use conform_cases::formats::{ElemType, read_f32, read_i32};
use conform_cases::inputs::Inputs;
use conform_cases::judge::Capabilities;
use conform_cases::model::Kernels;
use conform_cases::model::probe::{Observed, Statement, cases, ideal, survived};
use conform_cases::plan::{Plan, Step};
use half::{bf16, f16};

use super::bench::{Bench, OWN};

/// A matmul that adds product by product.
#[derive(Clone, Copy)]
struct Arithmetic {
    activations: fn(&[f32]) -> Vec<f64>,
    weight: fn(f64) -> f64,
    /// Rounds each product and each sum.
    round: fn(f64) -> f64,
}

fn as_f32(v: f64) -> f64 {
    f64::from(v as f32)
}

fn as_f16(v: f64) -> f64 {
    f16::from_f64(v).to_f64()
}

fn each(x: &[f32], convert: fn(f64) -> f64) -> Vec<f64> {
    x.iter().map(|v| convert(f64::from(*v))).collect()
}

/// 8-bit codes with an f32 scale in blocks.
fn codes(x: &[f32], block: usize) -> Vec<f64> {
    let one = |values: &[f32]| {
        let d = values.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0;
        let code = move |v: &f32| if d == 0.0 { 0.0 } else { f64::from((v / d).round_ties_even()) * f64::from(d) };
        values.iter().map(code).collect::<Vec<f64>>()
    };
    x.chunks(block).flat_map(one).collect()
}

const SHARP: Arithmetic = Arithmetic { activations: |x| each(x, |v| v), weight: |w| w, round: as_f32 };
const F16_ACTIVATIONS: Arithmetic = Arithmetic { activations: |x| each(x, as_f16), ..SHARP };
const F16_OPERANDS: Arithmetic = Arithmetic { weight: as_f16, ..F16_ACTIVATIONS };
const F16_TILES: Arithmetic = Arithmetic { round: as_f16, ..F16_OPERANDS };
const BF16_OPERANDS: Arithmetic = Arithmetic {
    activations: |x| each(x, |v| bf16::from_f64(v).to_f64()),
    weight: |w| bf16::from_f64(w).to_f64(),
    ..SHARP
};
const BF16_ACTIVATIONS: Arithmetic = Arithmetic { weight: |w| w, ..BF16_OPERANDS };
const CODES_32: Arithmetic = Arithmetic { activations: |x| codes(x, 32), ..SHARP };
const CODES_256: Arithmetic = Arithmetic { activations: |x| codes(x, 256), ..SHARP };

impl Arithmetic {
    fn compute(&self, plan: &Plan, inputs: &Inputs<'_>) -> Vec<Option<u32>> {
        let Step::MulMatId { weights, x, ids, out } = plan.steps[0] else { panic!("no matmul") };
        let ((wt, wb), (xt, xb), (it, ib)) = (inputs.tensor(weights), inputs.tensor(x), inputs.tensor(ids));
        let [m, used, n, _] = plan.tensors[out].shape;
        let mut w = vec![0.0; wt.shape[0]];
        let mut results = Vec::new();
        for token in 0..n {
            let experts: Vec<i32> = read_i32(&ib[it.row_range([token, 0, 0])]).collect();
            for (slot, expert) in experts.iter().enumerate().take(used) {
                let row: Vec<f32> = read_f32(&xb[xt.row_range([slot % xt.shape[1], token, 0])]).collect();
                let x = (self.activations)(&row);
                for r in 0..m {
                    wt.ty.decode(&wb[wt.row_range([r, *expert as usize, 0])], &mut w);
                    let add = |sum, (w, x): (&f64, &f64)| (self.round)(sum + (self.round)((self.weight)(*w) * x));
                    results.push(Some((w.iter().zip(&x).fold(0.0, add) as f32).to_bits()));
                }
            }
        }
        results
    }

    fn shown(&self, w: ElemType) -> String {
        let mut observed = Observed::default();
        for (recipe, case) in cases(w, 1).unwrap() {
            let bench = Bench::with(case, ideal(&OWN), |plan, inputs| self.compute(plan, inputs));
            observed.note(recipe, survived(&bench.judge()).unwrap());
        }
        Statement::of(&observed).to_string()
    }

    /// The failed checks of a device without an entry that computes so.
    fn failures(&self, w: &str, data: &str) -> Vec<String> {
        let id = format!("mul_mat_id/w={w},x=f32,e=4,u=2,m=24,n=24,k=256,b=2/route=shuffle,data={data}/v1-5");
        let device = Capabilities { kernels: Kernels::Unknown, ..OWN };
        let bench = Bench::with(id.parse().unwrap(), device, |plan, inputs| self.compute(plan, inputs));
        bench.judge().failures().map(|c| format!("{}: {}", c.name, c.failure().unwrap().what)).collect()
    }
}

#[test]
fn the_probe_says_what_a_device_does() {
    for w in ElemType::WEIGHTS {
        // Where weights have few bits nobody sees them converted.
        let has_bits = w == ElemType::F32 || w.is_blocked() && w != ElemType::Mxfp4;
        let converted = if has_bits { ", converted weights" } else { "" };
        for (arithmetic, statement) in [
            (SHARP, "24-bit sums, f32 activations".to_owned()),
            (F16_ACTIVATIONS, "24-bit sums, f16 activations".to_owned()),
            (F16_OPERANDS, format!("24-bit sums, f16 activations{converted}")),
            (F16_TILES, "11-bit sums, f16 or f32 activations".to_owned()),
            (BF16_ACTIVATIONS, "24-bit sums, bf16 activations".to_owned()),
            (CODES_32, "24-bit sums, 8-bit activations".to_owned()),
        ] {
            assert_eq!(arithmetic.shown(w), statement, "{w}");
        }
    }
}

#[test]
fn a_failure_names_the_looser_model_that_would_pass() {
    for (arithmetic, w, data, model) in [
        (F16_OPERANDS, "f32", "w2049", "f16 operands, f32 sums"),
        (F16_TILES, "f32", "wide", "f16 tiles, f16 sums"),
        (F16_TILES, "q4_0", "wide", "f16 tiles, f16 sums"),
        (BF16_OPERANDS, "q4_K", "wide", "bf16 operands, f32 sums"),
        (CODES_256, "q6_K", "heavy", "8-bit activations in blocks of 256"),
    ] {
        let failures = arithmetic.failures(w, data);
        let end = format!("; only the looser model '{model}' would pass");
        assert!(failures.first().is_some_and(|f| f.ends_with(&end)), "{model}: {failures:?}");
        assert_eq!(failures.iter().filter(|f| f.contains("looser model")).count(), 1);
    }
}

/// Neither what passes nor what no arithmetic explains is given a name.
#[test]
fn other_outcomes_name_no_model() {
    assert_eq!(CODES_32.failures("q8_0", "normal"), Vec::<String>::new());
    let doubled = Arithmetic { weight: |w| 2.0 * w, ..SHARP };
    for data in ["normal", "wide"] {
        let failures = doubled.failures("q4_0", data);
        assert!(!failures.is_empty() && failures.iter().all(|f| !f.contains("looser model")), "{failures:?}");
    }
}
