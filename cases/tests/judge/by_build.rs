//! Weights that only a build decodes: judged by what it made of them.

use conform_cases::formats::ElemType;
use conform_cases::inputs::{Decoded, Inputs};
use conform_cases::judge::{POISONS, Status, decoded_check};

use super::bench::Bench;

fn bench(w: ElemType, n: usize, view: &str) -> Bench {
    let k = 2 * w.block_len();
    Bench::id(&format!("mul_mat_id/w={w},x=f32,e=4,u=2,m=24,n={n},k={k}{view}/route=shuffle,data=normal/v1-5"))
}

#[test]
fn the_right_values_are_made_of_what_was_decoded() {
    for w in ElemType::DECODED_BY_BUILD {
        for (n, view) in [(1, ""), (5, ",wv=kme")] {
            let bench = bench(w, n, view);
            let judgement = bench.judge();
            assert_eq!(judgement.failures().map(|c| &c.name).collect::<Vec<_>>(), Vec::<&String>::new(), "{w}");
            assert_eq!((judgement.checks[0].name.as_str(), &judgement.checks[0].status), ("decoded", &Status::Passed));
            assert_eq!(judgement.metrics.unwrap().exact, 0, "{w}: nothing that was decoded is a small integer");
        }
    }
}

#[test]
fn a_wrong_product_of_decoded_weights_fails() {
    let mut bench = bench(ElemType::Iq3S, 3, "");
    bench.edit_floats(|values| values[17] *= 1.001);
    assert_eq!(bench.failed(), ["values"]);
}

#[test]
fn values_that_are_not_finite_are_named() {
    let mut bench = bench(ElemType::Q2_0, 1, ",wv=m");
    let at = bench.layout.decoded[0].unwrap();
    let check = |bench: &Bench| {
        let decoded = Decoded::read(&bench.plan, &bench.layout, &bench.results);
        decoded_check(&bench.plan, &decoded).unwrap()
    };
    assert_eq!(check(&bench).status, Status::Passed);
    // Row 1 of expert 2 has 24 + 24 + 1 rows before it.
    let place = at + 4 * (128 * 49 + 3);
    bench.results[place..place + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let failure = check(&bench).failure().unwrap().clone();
    assert!(failure.what.starts_with("weights: 1 of 12288 q2_0 values are not finite"), "{}", failure.what);
    assert_eq!(failure.worst.as_deref(), Some("column 3 of row [1, 2, 0]: inf"));
    for value in bench.results[at..at + 4 * 12288].chunks_exact_mut(4) {
        value.copy_from_slice(&POISONS[0].to_le_bytes());
    }
    let failure = check(&bench).failure().unwrap().clone();
    assert!(failure.what.starts_with("weights: 12288 of 12288"), "{}", failure.what);
    assert!(failure.worst.unwrap().ends_with("never written"));
}

/// An oracle that was not told what the weights are must not find anything right.
#[test]
fn without_a_build_nothing_is_known() {
    let bench = bench(ElemType::Q5K, 1, "");
    let inputs = Inputs::new(&bench.plan, &bench.layout, &bench.inputs);
    let expected = bench.case.oracle(&inputs).expected(&inputs, &bench.device);
    assert!(expected.iter().all(|e| e.value.is_nan()));
}
