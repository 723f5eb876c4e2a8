//! Checks of the whole output, and devices that quantise activations: an implementation that does what the model says
//! must pass under every model that allows it, and faults too small for any single element must be seen.

use conform_cases::formats::{read_f32, read_i32};
use conform_cases::inputs::Inputs;
use conform_cases::judge::Capabilities;
use conform_cases::model::Kernels;
use conform_cases::plan::{Plan, Step};
use half::f16;

use super::bench::{Bench, OWN, QUANTISED};

fn types() -> impl Iterator<Item = (&'static str, usize)> {
    std::iter::once(("f32", 320)).chain(QUANTISED)
}

/// Activations as ggml's CPU backend quantises them for a weight type: values and stored sums by block of 32.
fn quantised(ty: &str, x: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let wide = ty.ends_with("_K");
    let (mut values, mut sums) = (Vec::new(), Vec::new());
    for block in x.chunks(if wide { 256 } else { 32 }) {
        let max = block.iter().fold(0f32, |m, v| m.max(v.abs()));
        let inverse = if max == 0.0 { 0.0 } else { 127.0 / max };
        let d = if wide && max > 0.0 { f64::from(1.0 / inverse) } else { f64::from(f16::from_f32(max / 127.0)) };
        for narrow in block.chunks(32) {
            let codes: Vec<f64> = narrow.iter().map(|v| f64::from((v * inverse).round_ties_even())).collect();
            let sum: f64 = codes.iter().sum();
            sums.push(if wide { d * sum } else { f64::from(f16::from_f32(max / 127.0 * sum as f32)) });
            values.extend(codes.iter().map(|c| c * d));
        }
    }
    (values, sums)
}

/// A matmul over quantised activations: block sums in f64, added in f32.
fn over_quantised(plan: &Plan, inputs: &Inputs<'_>) -> Vec<Option<u32>> {
    let Step::MulMatId { weights, x, ids, out } = plan.steps[0] else { panic!("no matmul") };
    let ((wt, wb), (xt, xb), (it, ib)) = (inputs.tensor(weights), inputs.tensor(x), inputs.tensor(ids));
    let [m, used, n, _] = plan.tensors[out].shape;
    let (k, ty) = (wt.shape[0], wt.ty);
    let mut results = Vec::new();
    for token in 0..n {
        let experts: Vec<i32> = read_i32(&ib[it.row_range([token, 0, 0])]).collect();
        for (slot, expert) in experts.iter().enumerate().take(used) {
            let row: Vec<f32> = read_f32(&xb[xt.row_range([slot % xt.shape[1], token, 0])]).collect();
            let (values, sums) = match ty.name() {
                "f32" => (row.iter().map(|v| f64::from(*v)).collect(), vec![0.0; k.div_ceil(32)]),
                name => quantised(name, &row),
            };
            for r in 0..m {
                let stored = &wb[wt.row_range([r, *expert as usize, 0])];
                let (mut w, mut o) = (vec![0.0; k], vec![0.0; k]);
                ty.decode(stored, &mut w);
                // Only the 32-wide formats with a minimum multiply it with a stored sum.
                if ty.name().ends_with("_1") {
                    ty.offsets(stored, false, &mut o);
                }
                let mut sum = 0f32;
                for b in 0..k / 32 {
                    let products = (b * 32..b * 32 + 32).map(|i| (w[i] - o[i]) * values[i]).sum::<f64>();
                    sum += (products + o[b * 32] * sums[b]) as f32;
                }
                results.push(Some(sum.to_bits()));
            }
        }
    }
    results
}

fn bench(ty: &str, k: usize, data: &str, seed: usize, kernels: Kernels) -> Bench {
    bench_of(&format!("w={ty},x=f32,e=4,u=2,m=24,n=24,k={k},b=2"), data, seed, kernels)
}

fn bench_of(params: &str, data: &str, seed: usize, kernels: Kernels) -> Bench {
    let id = format!("mul_mat_id/{params}/route=shuffle,data={data}/v1-{seed:x}");
    Bench::with(id.parse().unwrap(), Capabilities { kernels, ..OWN }, over_quantised)
}

#[test]
fn what_the_model_says_passes() {
    for kernels in [Kernels::GgmlCpuAvx, Kernels::GgmlRepack, Kernels::Unknown] {
        // A device nobody knows is judged as if it quantised 32 activations together, not 256.
        let known = |ty: &str| kernels != Kernels::Unknown || !ty.ends_with("_K");
        for (ty, k) in types().filter(|(ty, _)| known(ty)) {
            for (seed, data) in ["normal", "uniform", "heavy", "zeros", "wide", "narrow", "const"].iter().enumerate() {
                let bench = bench(ty, k, data, seed, kernels);
                let j = bench.judge();
                let failures: Vec<_> = j.failures().collect();
                assert!(failures.is_empty(), "{kernels:?} {ty} {data}: {failures:?}");
                let m = j.metrics.unwrap();
                if ["wide", "narrow"].contains(data) && kernels != Kernels::Unknown {
                    assert_eq!(m.exact, m.elements, "{kernels:?} {ty} {data}");
                }
            }
        }
    }
}

/// 24 rows of two slots of 24 tokens are 1152 outputs: enough to see a factor of 1.002.
#[test]
fn a_small_factor_is_seen_by_the_whole() {
    for (ty, k) in types() {
        let mut bench = bench(ty, k, "normal", 7, Kernels::GgmlRepack);
        // Minima make the outputs of a row share more of its errors: less averages out.
        let factor = if ty.ends_with("_1") || ty == "q4_K" { 1.01 } else { 1.002 };
        bench.edit_floats(|v| v.iter_mut().for_each(|v| *v *= factor));
        let failed = bench.all_failed();
        assert!(failed.contains(&"scale".to_owned()), "{ty}: {failed:?}");
        if ty != "f32" {
            assert!(!failed.contains(&"values".to_owned()), "{ty}: each element is inside its envelope");
        }
    }
}

/// Both experts of a token multiply the same activations, and so share their errors.
#[test]
fn a_small_factor_is_seen_where_experts_share_rows() {
    for (ty, factor) in [("q4_0", 1.0), ("q8_0", 1.0), ("q4_0", 1.002), ("q8_0", 1.002)] {
        let params = format!("w={ty},x=f32,e=4,u=2,m=24,n=24,k=320");
        let mut bench = bench_of(&params, "normal", 7, Kernels::GgmlRepack);
        bench.edit_floats(|v| v.iter_mut().for_each(|v| *v *= factor));
        let seen = if factor == 1.0 { vec![] } else { vec!["scale".to_owned()] };
        assert_eq!(bench.all_failed(), seen, "{ty} {factor}");
    }
}

#[test]
fn a_small_offset_is_seen_by_the_whole() {
    let mut bench = bench("q8_0", 320, "normal", 7, Kernels::GgmlRepack);
    let metrics = bench.judge().metrics.unwrap();
    let offset = metrics.max_abs as f32 / 6.0;
    bench.edit_floats(|v| v.iter_mut().for_each(|v| *v += offset));
    assert_eq!(bench.all_failed(), ["bias"]);
}

/// Errors in 32 places that each stay inside the envelope, three times as large as the quantiser makes them.
#[test]
fn lost_bits_are_seen_by_the_whole() {
    let mut bench = bench("q8_0", 320, "normal", 7, Kernels::GgmlRepack);
    let right = bench.judge().metrics.unwrap().max_abs as f32;
    bench.edit_floats(|v| {
        for (i, v) in v.iter_mut().enumerate() {
            *v += if (i * 7 + i / 24) % 2 == 0 { right } else { -right };
        }
    });
    assert_eq!(bench.all_failed(), ["noise"]);
}

/// Where the quantiser is known the accumulation alone is uncertain: the bound is far smaller.
#[test]
fn a_known_quantiser_sharpens_the_bound() {
    let error = |kernels| {
        let mut bench = bench("q4_0", 320, "normal", 3, kernels);
        bench.edit_floats(|v| v[5] *= 1.001);
        bench.failed()
    };
    assert_eq!(error(Kernels::GgmlCpuAvx), ["values"]);
    assert_eq!(error(Kernels::GgmlRepack), Vec::<String>::new());
}

/// All slots of a token on one expert, one activation row: 64 copies of one error are no 64 errors.
#[test]
fn repeated_outputs_count_once() {
    for seed in 0..6 {
        let id = format!("mul_mat_id/w=q4_0,x=f32,e=64,u=64,m=8,n=2,k=128/route=one,data=uniform/v1-{seed}");
        assert_eq!(Bench::id(&id).all_failed(), Vec::<String>::new());
    }
}

/// 128 mantissas of bf16 make as many errors with an activation, however many outputs there are.
#[test]
fn equal_roundings_of_short_rows_are_no_bias() {
    for k in [1, 4] {
        let bench = Bench::id(&format!(
            "mul_mat_id/w=bf16,x=f32,e=8,u=6,m=711,n=83,k={k}/route=shuffle,data=heavy/v1-7cb4abdb"
        ));
        assert_eq!(bench.all_failed(), Vec::<String>::new());
    }
}
