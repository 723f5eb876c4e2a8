//! ggml's CUDA backend, done again in its own arithmetic: what quantised activations lose there must pass under the models
//! that were derived from the same sources, and what they do not lose must be seen.

use conform_cases::formats::{ElemType, read_f32, read_i32};
use conform_cases::inputs::Inputs;
use conform_cases::judge::Capabilities;
use conform_cases::model::Kernels;
use conform_cases::plan::{Plan, Step};
use half::f16;

use super::bench::{Bench, OWN, QUANTISED};

fn half(value: f64) -> f64 {
    f64::from(f16::from_f64(value))
}

/// 32 activations as they are stored.
struct Block {
    codes: Vec<f64>,
    d: f64,
    sum: f64,
}

fn quantised(x: &[f32], tiles: bool) -> Block {
    let max = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    let (d, inverse) = (max / 127.0, 127.0 / max);
    let code = |v: &f32| if tiles { (v * inverse).round() } else { (v / d).round() };
    let codes = x.iter().map(|v| if max == 0.0 { 0.0 } else { f64::from(code(v)) }).collect();
    let d = if tiles { 1.0 / inverse } else { d };
    Block { codes, d: if max == 0.0 { 0.0 } else { f64::from(d) }, sum: x.iter().map(|v| f64::from(*v)).sum() }
}

/// A block of 32 weights: w, with p and o where centres and minima are apart.
struct Weights<'a> {
    w: &'a [f64],
    p: Vec<f64>,
    o: f64,
}

/// The scale of a block of 32: p over code.
fn scale(ty: &str, stored: &[u8], block: usize, p: &[f64]) -> f64 {
    if !ty.ends_with("_K") {
        return f64::from(f16::from_le_bytes([stored[0], stored[1]]));
    }
    // The codes of q4_K: 32 bytes hold two runs of 32, low nibbles first.
    let bytes = &stored[16 + block / 2 * 32..][..32];
    let codes = bytes.iter().map(|b| f64::from(b >> (block % 2 * 4) & 15));
    codes.zip(p).find(|(code, _)| *code != 0.0).map_or(0.0, |(code, p)| p / code)
}

fn dot(ty: &str, tiles: bool, stored: &[u8], block: usize, w: &Weights<'_>, x: &Block) -> f64 {
    let products = |values: &[f64]| values.iter().zip(&x.codes).map(|(v, q)| v * q).sum::<f64>();
    match (ty, tiles) {
        ("q4_0" | "q5_0", false) => products(&w.p) * half(x.d) + w.o * half(x.sum),
        ("q4_1" | "q5_1", false) => {
            let d = scale(ty, stored, block, &w.p);
            let codes = if d == 0.0 { 0.0 } else { products(&w.p) / d };
            codes * half(d * half(x.d)) + half(w.o * half(x.sum))
        }
        ("q4_0", true) | (_, false) => products(w.w) * half(x.d),
        ("q4_1" | "q5_1", true) => products(&w.p) * half(x.d) + w.o * half(x.sum),
        ("q4_K", true) => {
            let d = scale(ty, stored, block, &w.p);
            let codes = if d == 0.0 { 0.0 } else { products(&w.p) / d };
            codes * half(d) * half(x.d) + half(w.o) * half(x.sum)
        }
        _ => products(w.w) * x.d,
    }
}

fn multiply(plan: &Plan, inputs: &Inputs<'_>) -> Vec<Option<u32>> {
    let Step::MulMatId { weights, x, ids, out } = plan.steps[0] else { panic!("no matmul") };
    let ((wt, wb), (xt, xb), (it, ib)) = (inputs.tensor(weights), inputs.tensor(x), inputs.tensor(ids));
    let [m, used, n, _] = plan.tensors[out].shape;
    let (k, ty, tiles) = (wt.shape[0], wt.ty, n > 8);
    let mut results = Vec::new();
    for token in 0..n {
        let experts: Vec<i32> = read_i32(&ib[it.row_range([token, 0, 0])]).collect();
        for (slot, expert) in experts.iter().enumerate().take(used) {
            let row: Vec<f32> = read_f32(&xb[xt.row_range([slot % xt.shape[1], token, 0])]).collect();
            let blocks: Vec<Block> = row.chunks(32).map(|x| quantised(x, tiles)).collect();
            for r in 0..m {
                let stored = &wb[wt.row_range([r, *expert as usize, 0])];
                let (mut w, mut o) = (vec![0.0; k], vec![0.0; k]);
                ty.decode(stored, &mut w);
                let apart = !ty.name().ends_with("6_K") && (ty == ElemType::Q4K || !ty.name().ends_with("_K"));
                if apart {
                    ty.offsets(stored, true, &mut o);
                }
                let mut sum = 0f32;
                for (b, x) in blocks.iter().enumerate() {
                    let range = b * 32..b * 32 + 32;
                    let p = range.clone().map(|i| w[i] - o[i]).collect();
                    let of_type = b * 32 / ty.block_len();
                    let stored = &stored[of_type * ty.block_bytes()..];
                    let weights = Weights { w: &w[range], p, o: o[b * 32] };
                    sum += dot(ty.name(), tiles, stored, b % (ty.block_len() / 32), &weights, x) as f32;
                }
                results.push(Some(sum.to_bits()));
            }
        }
    }
    results
}

fn bench(ty: &str, n: usize, k: usize, data: &str, seed: usize) -> Bench {
    let id = format!("mul_mat_id/w={ty},x=f32,e=4,u=2,m=24,n={n},k={k},b=2/route=shuffle,data={data}/v1-{seed:x}");
    let kernels = Kernels::GgmlCuda;
    Bench::with(id.parse().unwrap(), Capabilities { kernels, flushes_subnormals: true, ..OWN }, multiply)
}

#[test]
fn its_arithmetic_passes() {
    for (ty, k) in QUANTISED {
        for n in [1, 8, 9, 24] {
            for (seed, data) in ["normal", "uniform", "heavy", "zeros", "wide", "narrow", "const"].iter().enumerate() {
                for seed in [seed, seed + 100, seed + 200] {
                    let j = bench(ty, n, k, data, seed).judge();
                    let failures: Vec<_> = j.failures().collect();
                    assert!(failures.is_empty(), "{ty} n={n} {data} {seed}: {failures:?}");
                    let m = j.metrics.unwrap();
                    // Sums of activations have 11 bits in the types that store them.
                    let is_exact = *data == "narrow" || *data == "wide" && !ty.ends_with("_1");
                    assert!(!is_exact || m.exact == m.elements, "{ty} n={n} {data}: {} exact", m.exact);
                }
            }
        }
    }
}

/// One wrong element, and a factor on all.
#[test]
fn faults_are_seen() {
    for (ty, k) in QUANTISED {
        for n in [8, 24] {
            let all = |edit: &dyn Fn(&mut [f32])| {
                let mut bench = bench(ty, n, k, "normal", 7);
                bench.edit_floats(|v| edit(v));
                bench.all_failed()
            };
            let negated = all(&|v| {
                let largest = v.iter_mut().max_by(|a, b| a.abs().total_cmp(&b.abs()));
                largest.into_iter().for_each(|v| *v = -*v);
            });
            assert!(negated.contains(&"values".to_owned()), "{ty} {n}: {negated:?}");
            let scaled = all(&|v| v.iter_mut().for_each(|v| *v *= 1.02));
            assert!(scaled.contains(&"scale".to_owned()), "{ty} {n}: {scaled:?}");
        }
    }
}

/// Seen on an NVIDIA H200: minimum and sum are stored, and their product is rounded beyond f16 where it is not itself.
#[test]
fn a_product_at_the_edge_of_f16_may_overflow() {
    let id = "mul_mat_id/w=q5_1,x=f32,e=144,u=144,m=48,n=1,k=544,b=3,t=145,iv=u/route=fixed,data=scales/v1-2b269c7c";
    let device = Capabilities { kernels: Kernels::GgmlCuda, flushes_subnormals: true, ..OWN };
    let mut bench = Bench::with(id.parse().unwrap(), device, multiply);
    let failed = |bench: &Bench| bench.all_failed();
    assert_eq!(failed(&bench), Vec::<String>::new());
    bench.edit_floats(|v| v[72 * 48 + 13] = f32::INFINITY);
    assert_eq!(failed(&bench), Vec::<String>::new());
}
