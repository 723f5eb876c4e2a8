//! The judge is judged: a plain f32 implementation must pass everywhere, and faults
//! planted into its outputs must be seen, those that the mean squared error of a
//! whole tensor misses among them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use conform_cases::case::Case;
use conform_cases::formats::{read_f32, read_i32};
use conform_cases::judge::{Capabilities, Execution, Judgement, POISONS, judge};
use conform_cases::op::Inputs;
use conform_cases::plan::{Layout, Order, Plan, Step};
use conform_cases::profile::Profile;

const OWN: Capabilities = Capabilities {
    own_kernels: true,
    readable_inputs: true,
    scratch_poison: true,
    deterministic: true,
    flushes_subnormals: false,
};

/// A case with the outputs of a plain implementation in both runs.
struct Bench {
    case: Case,
    plan: Plan,
    layout: Layout,
    inputs: Vec<u8>,
    results: Vec<u8>,
}

impl Bench {
    fn new(case: Case) -> Self {
        let plan = case.plan();
        let layout = Layout::new(&plan, 2);
        let mut inputs = vec![0; layout.input_bytes];
        case.fill_all(&plan, &layout, &mut inputs);
        let mut results = vec![0; layout.result_bytes];
        for (i, t) in plan.tensors.iter().enumerate() {
            if let (Some(from), Some(to)) = (layout.source[i], layout.readback[i]) {
                let len = t.parent_bytes();
                results[to..to + len].copy_from_slice(&inputs[from..from + len]);
            }
        }
        let out = plan.tensors.len() - 1;
        let words = plain(&plan, &Inputs::new(&plan, &layout, &inputs));
        for (run, poison) in POISONS.iter().enumerate() {
            let at = layout.results[run][out].unwrap();
            for (i, w) in words.iter().enumerate() {
                results[at + 4 * i..at + 4 * i + 4].copy_from_slice(&w.unwrap_or(*poison).to_le_bytes());
            }
        }
        Bench { case, plan, layout, inputs, results }
    }

    fn id(id: &str) -> Self {
        Self::new(id.parse().unwrap())
    }

    fn judge(&self) -> Judgement {
        let oracle = self.case.body().oracle(&Inputs::new(&self.plan, &self.layout, &self.inputs));
        let execution =
            Execution { plan: &self.plan, layout: &self.layout, inputs: &self.inputs, results: &self.results };
        judge(&OWN, &*oracle, &execution)
    }

    fn failed(&self) -> Vec<String> {
        self.judge().failures().map(|c| c.name.clone()).collect()
    }

    /// Changes the words of the output alike in both runs.
    fn edit(&mut self, change: impl Fn(&mut [u32])) {
        let out = self.plan.tensors.len() - 1;
        let len = self.plan.tensors[out].parent_bytes();
        for run in 0..2 {
            let at = self.layout.results[run][out].unwrap();
            let bytes = &mut self.results[at..at + len];
            let mut words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
            change(&mut words);
            for (b, w) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                *b = w.to_le_bytes();
            }
        }
    }

    fn edit_floats(&mut self, change: impl Fn(&mut [f32])) {
        self.edit(|words| {
            let mut floats: Vec<f32> = words.iter().map(|w| f32::from_bits(*w)).collect();
            change(&mut floats);
            words.iter_mut().zip(floats).for_each(|(w, f)| *w = f.to_bits());
        });
    }

    fn nmse(&self) -> f64 {
        self.judge().metrics.unwrap().nmse
    }
}

/// The plan's step as a loop over f32 sums; `None` where nothing may be written.
fn plain(plan: &Plan, inputs: &Inputs<'_>) -> Vec<Option<u32>> {
    match plan.steps[0] {
        Step::MulMatId { weights, x, ids, out } => {
            let ((wt, wb), (xt, xb), (it, ib)) = (inputs.tensor(weights), inputs.tensor(x), inputs.tensor(ids));
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
                        wt.ty.decode(&wb[wt.row_range([row, e, 0])], &mut w);
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

/// Small drawn cases of every kind: a sequential f32 sum is never accused.
#[test]
fn a_plain_implementation_passes_everywhere() {
    let (mut judged, mut exact) = (0, 0);
    for case in Profile::Random.cases(11, 1500).filter(|c| c.body().cost().operations < 60_000) {
        let j = Bench::new(case.clone()).judge();
        let failures: Vec<_> = j.failures().collect();
        assert!(failures.is_empty(), "{case}: {failures:?}");
        if let Some(m) = &j.metrics {
            assert!(m.ratio <= 1.0, "{case}: {}", m.ratio);
            judged += m.elements;
            exact += m.exact;
        }
    }
    assert!(judged > 100_000 && exact > judged / 20, "{judged} judged, {exact} exact");
}

/// Every element of the exact recipes is exact for f32 sums, and nearly every other check has power.
#[test]
fn exact_recipes_are_exact() {
    for w in ["f32", "f16", "q4_0", "q8_0", "mxfp4"] {
        for (data, k) in [("wide", 64), ("wide", 4096), ("narrow", 256), ("narrow", 4096)] {
            for n in [1, 3] {
                let id = format!("mul_mat_id/w={w},x=f32,e=3,u=2,m=5,n={n},k={k}/route=shuffle,data={data}/v1-1");
                let m = Bench::id(&id).judge().metrics.unwrap();
                assert_eq!((m.exact, m.ratio), (m.elements, 0.0), "{id}");
            }
        }
    }
}

const NORMAL: &str = "mul_mat_id/w=mxfp4,x=f32,e=8,u=2,m=64,n=33,k=256/route=shuffle,data=normal/v1-5";

#[test]
fn faults_that_the_mean_squared_error_misses_are_seen() {
    let habit = 5e-4;
    let mut scaled = Bench::id(NORMAL);
    scaled.edit_floats(|v| v.iter_mut().for_each(|v| *v *= 1.02));
    assert!(scaled.nmse() < habit);
    assert_eq!(scaled.failed(), ["values"]);
    let pattern = scaled.judge().failures().next().unwrap().failure().unwrap().pattern.clone();
    assert_eq!(pattern.as_deref(), Some("nearly every element, all scaled by 1.0200"));

    let mut slightly = Bench::id(NORMAL);
    slightly.edit_floats(|v| v.iter_mut().for_each(|v| *v *= 1.002));
    assert_eq!(slightly.failed(), ["values"]);

    let mut one_zero = Bench::id(NORMAL);
    one_zero.edit_floats(|v| v[1234] = 0.0);
    assert!(one_zero.nmse() < habit);
    assert_eq!(one_zero.failed(), ["values"]);

    let mut negated = Bench::id(NORMAL);
    negated.edit_floats(|v| v[77] = -v[77]);
    assert_eq!(negated.failed(), ["values"]);

    let mut zeros = Bench::id(NORMAL);
    zeros.edit_floats(|v| v.fill(0.0));
    assert_eq!(zeros.failed(), ["values"]);

    let mut swapped = Bench::id(NORMAL);
    swapped.edit_floats(|v| (0..128).for_each(|i| v.swap(i, i + 128)));
    assert_eq!(swapped.failed(), ["values"]);
}

/// One term of a heavy-tailed sum dwarfs the rest: plain f32 sums must not be accused, and a zeroed element must.
#[test]
fn heavy_tails_raise_no_false_alarm() {
    for seed in 0..20 {
        let id = format!("mul_mat_id/w=f32,x=f32,e=2,u=1,m=16,n=9,k=1024/route=shuffle,data=heavy/v1-{seed:x}");
        let mut bench = Bench::id(&id);
        assert_eq!(bench.failed(), Vec::<String>::new());
        bench.edit_floats(|v| v[3] = 0.0);
        assert_eq!(bench.failed(), ["values"]);
    }
}

#[test]
fn exact_elements_allow_no_difference() {
    let mut bench = Bench::id("mul_mat_id/w=q8_0,x=f32,e=4,u=2,m=33,n=9,k=128/route=skew,data=wide/v1-2");
    bench.edit(|w| w[40] ^= 1);
    assert_eq!(bench.failed(), ["exact"]);
}

#[test]
fn nan_and_infinity_are_classes() {
    let id = "mul_mat_id/w=f32,x=f32,e=4,u=2,m=65,n=33,k=64/route=shuffle,data=special/v1-3";
    let bench = Bench::id(id);
    assert_eq!(bench.failed(), Vec::<String>::new());
    for (from, to) in [(f32::NAN, 1.0), (f32::INFINITY, f32::NAN), (f32::INFINITY, f32::NEG_INFINITY), (1.0, f32::NAN)]
    {
        let mut bench = Bench::id(id);
        bench.edit_floats(|v| {
            let same_class = |v: &&mut f32| v.is_nan() == from.is_nan() && (v.is_finite() == from.is_finite());
            if let Some(v) = v.iter_mut().find(|v| same_class(v) && (v.is_finite() || v.is_nan() || **v == from)) {
                *v = to;
            }
        });
        assert_eq!(bench.failed(), ["class"], "{from} to {to}");
    }
}

#[test]
fn slots_of_foreign_ids_stay_untouched() {
    let mut bench = Bench::id("mul_mat_id/w=f32,x=f32,e=4,u=2,m=3,n=9,k=8/route=out,data=normal/v1-3");
    assert_eq!(bench.failed(), Vec::<String>::new());
    bench.edit(|w| {
        w.iter_mut().for_each(|w| {
            if POISONS.contains(w) {
                *w = 0
            }
        })
    });
    assert_eq!(bench.failed(), ["untouched"]);
}

#[test]
fn an_unwritten_element_is_seen() {
    let mut bench = Bench::id(NORMAL);
    bench.edit(|w| w[500] = POISONS[0]);
    // In the second run the word is not that run's poison: a NaN where a number belongs, and both runs are equal.
    assert_eq!(bench.failed(), ["written"]);
    let mut bench = Bench::id("argsort/c=33,r=5/data=uniform/v1-1");
    bench.edit(|w| w[70] = POISONS[0]);
    assert_eq!(bench.failed(), ["written"]);
}

#[test]
fn exchanged_indices_are_seen() {
    let mut bench = Bench::id("argsort/c=33,r=5,o=desc/data=uniform/v1-1");
    assert_eq!(bench.failed(), Vec::<String>::new());
    bench.edit(|w| w.swap(40, 41));
    assert_eq!(bench.failed(), ["order"]);
    bench.edit(|w| w[40] = w[42]);
    assert_eq!(bench.failed(), ["permutation"]);
}

/// Row 2 of a top-k with four different keys, 64 columns and k = 32.
#[test]
fn faults_of_a_top_k_are_seen() {
    let bench = || Bench::id("top_k/c=64,r=5,k=32/data=ties/v1-1");
    let failed = |change: &dyn Fn(&mut [u32], &[u32])| {
        let mut bench = bench();
        let keys = Inputs::new(&bench.plan, &bench.layout, &bench.inputs).tensor(0).1;
        let keys: Vec<f32> = read_f32(&keys[2 * 256..3 * 256]).collect();
        let mut ascending: Vec<u32> = (0..64).collect();
        ascending.sort_by(|a, b| keys[*a as usize].total_cmp(&keys[*b as usize]));
        bench.edit(|w| change(&mut w[64..96], &ascending));
        bench.failed()
    };
    // Any order of the right answer is right.
    assert_eq!(failed(&|row, _| row.reverse()), Vec::<String>::new());
    // The smallest key in place of the largest; places beyond 16 that nobody filled; the k best by index alone.
    assert_eq!(failed(&|row, ascending| row[31] = ascending[0]), ["best"]);
    assert_eq!(failed(&|row, _| row[16..].fill(0)), ["distinct"]);
    assert_eq!(failed(&|row, _| (0..32).for_each(|i| row[i as usize] = i)), ["best"]);
    assert_eq!(failed(&|row, _| row[7] = 64), ["distinct"]);
    let mut unwritten = bench();
    unwritten.edit(|w| w[70] = POISONS[0]);
    assert_eq!(unwritten.failed(), ["written"]);
}

/// A copy of the k-th key in place of a larger one: no key is below the k-th, and one is missing all the same.
#[test]
fn a_displaced_key_is_seen() {
    let mut bench = Bench::id("top_k/c=64,k=32/data=ties/v1-1");
    let keys = Inputs::new(&bench.plan, &bench.layout, &bench.inputs).tensor(0).1;
    let keys: Vec<f32> = read_f32(keys).collect();
    bench.edit(|row| {
        let kth = keys[row[0] as usize];
        let spare = (0..64).find(|i| keys[*i as usize] == kth && !row.contains(i)).unwrap();
        assert!(keys[row[31] as usize] > kth);
        row[31] = spare;
    });
    assert_eq!(bench.failed(), ["best"]);
}

#[test]
fn a_changed_input_is_seen_in_the_view_and_in_its_margin() {
    for margin in [false, true] {
        let mut bench = Bench::id("mul_mat_id/w=q4_0,x=f32,e=4,u=2,m=3,n=2,k=32,wv=m/route=skew,data=normal/v1-3");
        let t = &bench.plan.tensors[0];
        let at = if margin { 0 } else { t.row_range([1, 1, 0]).start };
        bench.results[bench.layout.readback[0].unwrap() + at] ^= 0x10;
        assert_eq!(bench.failed(), ["inputs"]);
        let j = bench.judge();
        let worst = j.failures().next().unwrap().failure().unwrap().worst.clone().unwrap();
        assert!(worst.contains(if margin { "outside the view" } else { "row [1, 1, 0] of the view" }), "{worst}");
    }
}

#[test]
fn a_second_run_with_other_bits_is_seen_and_judged() {
    let mut bench = Bench::id(NORMAL);
    let second = bench.layout.results[1][3].unwrap();
    bench.results[second + 40] ^= 1;
    assert_eq!(bench.failed(), ["repeat"]);
    bench.results[second + 43] ^= 0x40;
    assert_eq!(bench.failed(), ["values", "repeat"]);
}
