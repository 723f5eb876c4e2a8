//! Programs of several steps: each step is judged on what it was given, and a wrong one is named.

use conform_cases::judge::{Status, one_by_one};

use crate::bench::Bench;

const LAYER: &str = "moe_layer/w=mxfp4,x=f32,e=8,u=2,h=64,f=96,n=5/route=ties,data=normal/v1-5";
const IDS: &str = "mul_mat_id/w=mxfp4,x=f32,e=8,u=2,m=32,n=9,k=64/route=shuffle,data=normal,seq=ids/v1-5";

/// The position of a tensor.
fn at(bench: &Bench, name: &str) -> usize {
    bench.plan.tensors.iter().position(|t| t.name == name).unwrap()
}

/// What is wrong, in the words of the first check that fails.
fn wrong(bench: &Bench) -> String {
    let judged = bench.judge();
    let failure = judged.failures().next().map(|check| (check.name.clone(), check.failure().unwrap().what.clone()));
    failure.map_or_else(String::new, |(name, what)| format!("{name}: {what}"))
}

#[test]
fn programs_pass() {
    for id in [LAYER, IDS] {
        let bench = Bench::id(id);
        assert_eq!(wrong(&bench), "");
        let metrics = bench.judge().metrics.unwrap();
        assert!(metrics.power > 0.9 && metrics.elements >= 1000, "{id}: {metrics:?}");
    }
}

/// A wrong result is the next step's input, and that step is right for what it was given.
#[test]
fn the_wrong_step_is_named_and_those_after_it_are_not_blamed() {
    for (name, step) in [("gate", "step 1 (gate): 1 of"), ("up", "step 2 (up): 1 of"), ("down", "step 3 (down): 1 of")]
    {
        let mut bench = Bench::id(LAYER);
        let tensor = at(&bench, name);
        bench.edit_tensor(tensor, |w| w[7] = 1.5f32.to_bits());
        let found = wrong(&bench);
        // `down` did not see the changed element of `up`: it is wrong for what `up` left behind.
        let later = if name == "up" { "; 1 later step(s) fail it too" } else { "" };
        assert!(found.starts_with(&format!("values: {step}")) && found.ends_with(later), "{name}: {found}");
    }
    // Another choice among ties is a right one, but the matmuls were not made for it.
    let mut bench = Bench::id(LAYER);
    let order = at(&bench, "order");
    bench.edit_tensor(order, |w| w.swap(0, 7));
    assert!(wrong(&bench).starts_with("order: step 0 (order): "), "{}", wrong(&bench));
}

/// A result of the ids that were there before, in the same tensor or in another, is a wrong result.
#[test]
fn stale_ids_are_seen() {
    for (stale, of, step) in [("out_2", "out", "step 1 (out_2)"), ("out_4", "out_3", "step 5 (out_4)")] {
        let mut bench = Bench::id(IDS);
        let (from, to) = (at(&bench, of), at(&bench, stale));
        let run = |bench: &Bench, run: usize, tensor: usize| {
            let at = bench.layout.results[run][tensor].unwrap();
            at..at + bench.plan.tensors[tensor].parent_bytes()
        };
        for r in 0..bench.layout.results.len() {
            let (from, to) = (run(&bench, r, from), run(&bench, r, to));
            bench.results.copy_within(from, to.start);
        }
        assert!(wrong(&bench).contains(step), "{}", wrong(&bench));
    }
}

#[test]
fn one_by_one_must_give_the_bits_of_the_whole() {
    let mut bench = Bench::id(LAYER);
    let alone = one_by_one(&bench.plan, bench.layout.results.len()).unwrap();
    assert_eq!(alone, 2);
    let place = bench.layout.results[alone][at(&bench, "down")].unwrap();
    // One bit more or less is within any bound.
    bench.results[place] ^= 1;
    let failed = || bench.judge().checks.into_iter().find(|c| c.name == "stepwise").unwrap().status;
    let Status::Failed(failure) = failed() else { panic!("{:?}", failed()) };
    assert!(failure.what.starts_with("down: 1 of 640 elements differ between the whole in one go and"), "{failure:?}");
    // And something else is a wrong value that was right in the other runs.
    bench.results[place + 3] ^= 0x70;
    assert!(wrong(&bench).starts_with("values: step 3 (down): 1 of"), "{}", wrong(&bench));
    bench.device.deterministic = false;
    bench.results[place + 3] ^= 0x70;
    assert_eq!(wrong(&bench), "");
}

/// Calls that bytes are moved between are one piece of work each, whatever the run.
#[test]
fn a_sequence_may_have_nothing_to_run_one_by_one() {
    let plan = |id: &str| Bench::id(id).plan;
    assert!(one_by_one(&plan(IDS), 3).is_some());
    assert_eq!(one_by_one(&plan("argsort/c=9/data=ties/v1-1"), 2), None);
}
