//! The judge is judged: a plain f32 implementation must pass everywhere, and faults
//! planted into its outputs must be seen, those that the mean squared error of a
//! whole tensor misses among them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod arithmetic;
mod bench;
mod by_build;
mod ggml_cuda;
mod staged;
mod steps;
mod top_k;
mod whole;

use conform_cases::judge::POISONS;
use conform_cases::profile::Profile;

use bench::Bench;

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
