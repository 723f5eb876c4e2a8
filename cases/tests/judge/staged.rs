//! Sums in stages: operands in f16, products added 8 at a time in f16, then in f32. An implementation that does no more
//! than this must pass on any data, whether it flushes f16 subnormals or not, and one that does more must not.

use conform_cases::formats::{read_f32, read_i32};
use conform_cases::inputs::Inputs;
use conform_cases::judge::{Capabilities, Judgement};
use conform_cases::model::Kernels;
use conform_cases::plan::{Plan, Step};
use half::f16;

use super::bench::{Bench, OWN};

/// Products that are added in f16.
#[derive(Clone, Copy)]
struct Staged {
    together: usize,
    flushes: bool,
}

const DECLARED: Staged = Staged { together: 8, flushes: false };

impl Staged {
    /// The nearest f16, as the device leaves it.
    fn round(self, value: f32) -> f32 {
        let half = f16::from_f32(value);
        if self.flushes && !half.is_normal() && half.is_finite() { 0.0 } else { half.to_f32() }
    }

    /// One output. f32 holds products and sums of two f16 to more than twice their bits, so rounding twice is rounding
    /// once.
    fn output(self, w: &[f64], x: &[f32]) -> f32 {
        let operand = |v: f32| self.round(v);
        let products = w.iter().zip(x).map(|(w, x)| self.round(operand(*w as f32) * operand(*x)));
        let products: Vec<f32> = products.collect();
        let in_f16 = |products: &[f32]| products.iter().copied().reduce(|sum, p| self.round(sum + p)).unwrap();
        products.chunks(self.together).map(in_f16).fold(0.0, |sum, together| sum + together)
    }

    fn outputs(self, plan: &Plan, inputs: &Inputs<'_>) -> Vec<Option<u32>> {
        let Step::MulMatId { weights, x, ids, out } = plan.steps[0] else { panic!("no matmul") };
        let ((wt, wb), (xt, xb), (it, ib)) = (inputs.tensor(weights), inputs.tensor(x), inputs.tensor(ids));
        let [m, used, n, _] = plan.tensors[out].shape;
        let mut w = vec![0.0; wt.shape[0]];
        let mut results = Vec::new();
        for token in 0..n {
            for (slot, expert) in read_i32(&ib[it.row_range([token, 0, 0])]).enumerate().take(used) {
                let x: Vec<f32> = read_f32(&xb[xt.row_range([slot % xt.shape[1], token, 0])]).collect();
                for row in 0..m {
                    wt.ty.decode(&wb[wt.row_range([row, expert as usize, 0])], &mut w);
                    results.push(Some(self.output(&w, &x).to_bits()));
                }
            }
        }
        results
    }

    fn bench(self, sections: &str, data: &str, seed: usize) -> Bench {
        let id = format!("mul_mat_id/w=mxfp4,x=f32,{sections}/route=shuffle,data={data}/v1-{seed:x}");
        let device = Capabilities { kernels: Kernels::OwnHalf, flushes_f16: self.flushes, ..OWN };
        Bench::with(id.parse().unwrap(), device, |plan, inputs| self.outputs(plan, inputs))
    }
}

/// Weights that vanish in f16 and weights beyond its range, all of one sign and of both.
const ANY_DATA: [&str; 12] =
    ["normal", "uniform", "heavy", "zeros", "wide", "narrow", "const", "scales", "tiny", "huge", "special", "loud"];

#[test]
fn what_the_model_says_passes() {
    for flushes in [false, true] {
        let device = Staged { flushes, ..DECLARED };
        for (seed, data) in ANY_DATA.into_iter().enumerate() {
            for shape in ["e=4,u=2,m=24,n=24,k=320,b=2", "e=2,u=1,m=300,n=40,k=32", "e=2,u=2,m=5,n=2,k=4096"] {
                let bench = device.bench(shape, data, seed);
                let failures: Vec<_> = bench.judge().failures().cloned().collect();
                assert!(failures.is_empty(), "flushes {flushes}, {data}, {shape}: {failures:?}");
            }
        }
    }
}

/// A row of blocks with one scale, times activations: what each test makes of scales and activations goes here.
fn edited(device: Staged, sections: &str, data: &str, scale: u8, x: impl Fn(f32) -> f32) -> Judgement {
    let mut bench = device.bench(sections, data, scale.into());
    let [w, activations] = [0, 1].map(|t| bench.layout.source[t].unwrap()..bench.plan.tensors[t].parent_bytes());
    for block in bench.inputs[w.start..][..w.end].chunks_exact_mut(17).filter(|block| block[0] != 255) {
        block[0] = scale;
    }
    for place in bench.inputs[activations.start..][..activations.end].as_chunks_mut::<4>().0 {
        *place = x(f32::from_le_bytes(*place)).to_le_bytes();
    }
    bench.recomputed(|plan, inputs| device.outputs(plan, inputs)).judge()
}

fn none_fails(what: &str, judgement: &Judgement) {
    let failures: Vec<_> = judgement.failures().collect();
    assert!(failures.is_empty(), "{what}: {failures:?}");
}

/// Weights as small as what f16 still holds, times activations so large that products are not: what is lost has the sign
/// of what it is lost from, in all outputs.
#[test]
fn what_vanishes_is_no_scale() {
    for scale in 95..=116 {
        for flushes in [false, true] {
            let judged =
                edited(Staged { flushes, ..DECLARED }, "e=1,u=1,m=96,n=64,k=64", "uniform", scale, |x| 512.0 * x);
            none_fails(&format!("flushes {flushes}, scale {scale}"), &judged);
        }
    }
}

/// Operands that f16 holds, whose products it does not: all of a row is lost, or makes sums that are flushed.
#[test]
fn lost_products_of_one_sign_add_up() {
    for (flushes, scale) in [(false, 112), (true, 120)] {
        for x in (0..16).map(|i| 2f32.powi(-13) * (1.0 + i as f32 / 16.0)) {
            let device = Staged { flushes, ..DECLARED };
            let judged = edited(device, "e=1,u=1,m=4,n=3,k=1024", "const", scale, |_| x);
            none_fails(&format!("flushes {flushes}, x {x}"), &judged);
        }
    }
}

/// 1.5 · 1.0908203125, eight times in f16, is wrong by 3.056 units: conversions that change nothing allow two.
#[test]
fn a_sum_in_f16_is_of_eight_roundings() {
    none_fails("eight", &edited(DECLARED, "e=1,u=1,m=4,n=3,k=1024", "const", 126, |_| 1.090_820_3));
}

/// Activations in f16, weights that vanish in it: infinity times zero.
#[test]
fn an_infinity_may_meet_a_weight_that_vanished() {
    none_fails("vanished", &edited(DECLARED, "e=2,u=1,m=64,n=64,k=64", "special", 90, |x| x));
}

/// Multiples of what f16 does not hold do not add exactly in it, whatever their operands are.
#[test]
fn products_below_the_last_place_are_not_exact() {
    none_fails("small", &edited(DECLARED, "e=1,u=1,m=64,n=9,k=64", "narrow", 112, |x| x / 1024.0));
}

/// Eight products may overflow where four do not.
#[test]
fn eight_products_may_overflow_together() {
    let judged = edited(DECLARED, "e=1,u=1,m=4,n=3,k=64", "const", 126, |_| 6000.0);
    assert!(judged.failures().next().is_none() && judged.inconclusive.is_some(), "{judged:?}");
}

/// Sums of 8 products stay in the range of f16 where the sum of the row does not.
#[test]
fn only_what_may_overflow_is_left_out() {
    let metrics = |data| DECLARED.bench("e=2,u=1,m=8,n=9,k=2048", data, 1).judge().metrics.unwrap();
    let (wide, normal) = (metrics("wide"), metrics("normal"));
    assert_eq!((wide.inconclusive, normal.inconclusive), (0, 0));
    assert!(wide.power > 0.7 && normal.power > 0.9, "{} {}", wide.power, normal.power);
    let narrow = metrics("narrow");
    assert_eq!(narrow.exact, narrow.elements);
}

/// f16 for longer than the model says: what a kernel with one running sum in f16 would do.
#[test]
fn more_products_in_f16_are_seen() {
    for (k, together) in [(320, 320), (1024, 1024)] {
        let device = Staged { together, ..DECLARED };
        let failed = device.bench(&format!("e=4,u=2,m=64,n=64,k={k},b=2"), "normal", 1).all_failed();
        assert!(failed.contains(&"noise".to_owned()), "{k} in f16: {failed:?}");
    }
}

#[test]
fn a_small_factor_and_one_wrong_element_are_seen() {
    let bench = || DECLARED.bench("e=4,u=2,m=24,n=24,k=320,b=2", "normal", 7);
    let mut scaled = bench();
    scaled.edit_floats(|v| v.iter_mut().for_each(|v| *v *= 1.002));
    assert!(scaled.all_failed().contains(&"scale".to_owned()));
    let mut wrong = bench();
    wrong.edit_floats(|v| v[5] += 1.0);
    assert_eq!(wrong.failed(), ["values"]);
}
