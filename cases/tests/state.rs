//! State cases against a device that is plain memory, and against engines that are wrong.

use conform_cases::Case;
use conform_cases::inputs::{Decoded, Inputs};
use conform_cases::judge::{Capabilities, Execution, Judgement, POISONS, judge};
use conform_cases::plan::{Layout, Plan, Step};
use conform_cases::profile::Profile;
use conform_cases::state::mutants::MUTANTS;
use conform_cases::state::plain::PlainMemory;
use conform_cases::state::stages::Stages;

fn execute(case: &Case, change: impl Fn(&mut Plan)) -> Judgement {
    let plan = case.plan();
    let layout = Layout::new(&plan, 2);
    let mut inputs = vec![0; layout.input_bytes];
    case.fill_all(&plan, &layout, &mut inputs);
    let mut results = vec![0; layout.result_bytes];
    let mut executed = plan.clone();
    change(&mut executed);
    for (run, poison) in POISONS.iter().enumerate() {
        let mut memory = PlainMemory::of_plan(&plan, &Inputs::new(&plan, &layout, &inputs), *poison);
        // Buffers that the change has added stand for memory that was freed.
        memory.buffers.extend(executed.buffers.iter().skip(plan.buffers.len()).map(|b| vec![0xa5; b.bytes]));
        let done = executed.steps.iter().try_for_each(|step| memory.step(step));
        assert_eq!(done, Ok(()));
        let tensors = layout.results[run].iter().zip(&memory.tensors);
        let buffers = layout.left.get(run).into_iter().flatten().zip(&memory.buffers);
        for (at, bytes) in tensors.chain(buffers) {
            if let Some(at) = at {
                results[*at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
    }
    for (i, t) in plan.tensors.iter().enumerate() {
        if let (Some(source), Some(back)) = (layout.source[i], layout.readback[i]) {
            results[back..back + t.parent_bytes()].copy_from_slice(&inputs[source..source + t.parent_bytes()]);
        }
    }
    let oracle = case.oracle(&Inputs::new(&plan, &layout, &inputs));
    let decoded = Decoded::default();
    let execution = Execution { plan: &plan, layout: &layout, inputs: &inputs, results: &results, decoded: &decoded };
    judge(&Capabilities::OWN, &*oracle, None, &execution)
}

fn describe(case: &Case) -> String {
    let plan = case.plan();
    let layout = Layout::new(&plan, 2);
    let inputs = vec![0; layout.input_bytes];
    case.describe(&Inputs::new(&plan, &layout, &inputs)).join("\n")
}

fn failed(judgement: &Judgement) -> Vec<String> {
    judgement.failures().map(|c| c.name.clone()).collect()
}

/// The engine, on memory that does what it is told, is right in every drawn case.
#[test]
fn drawn_cases_pass() {
    for case in Profile::State.cases(1, 300) {
        let judgement = execute(&case, |_| ());
        let failures: Vec<_> = judgement.failures().collect();
        assert!(failures.is_empty(), "{case}: {failures:#?}\n{}", describe(&case));
    }
}

/// Every wrong engine is noticed, and soon.
#[test]
fn wrong_engines_fail() {
    let cases: Vec<Case> = Profile::State.cases(1, 300).collect();
    for mutant in MUTANTS {
        let mut stages = Stages::default();
        (mutant.change)(&mut stages);
        let kill = cases.iter().enumerate().find_map(|(i, case)| {
            let failures = failed(&execute(&case.with_stages(stages).unwrap(), |_| ()));
            (!failures.is_empty()).then_some((i, failures))
        });
        let (cases, checks) = kill.unwrap_or_else(|| panic!("{} survives", mutant.id));
        println!("{:<26} {cases:>4} {checks:?}", mutant.id);
        assert!(cases < 100, "{} survives {cases} cases", mutant.id);
    }
}

/// Each check of what a device does with bytes fails where it does something else.
#[test]
fn wrong_devices_fail() {
    let case: Case = "kv_state/c=64,q=4,l=1,k=32,v=32/n=3/v1-1".parse().unwrap();
    let failed_by = |change: fn(&mut Plan)| failed(&execute(&case, change));
    assert_eq!(failed_by(|_| ()), [""; 0]);

    // A restore that does nothing.
    let nothing = failed_by(|plan| plan.steps.retain(|s| !matches!(s, Step::Upload { .. })));
    assert!(["roundtrip", "placement"].iter().all(|c| nothing.iter().any(|n| n == c)), "{nothing:?}");
    // A save that does not wait for the work before it: everything that was queued comes at the very end.
    let late = failed_by(|plan| {
        let (queued, rest): (Vec<Step>, _) = plan.steps.drain(..).partition(|s| matches!(s, Step::Copy { .. }));
        plan.steps = [rest, queued].concat();
    });
    assert!(late.iter().any(|n| n == "queued"), "{late:?}");
    // A load that reads its source after it has said that it is done.
    let freed = failed_by(|plan| {
        let at = plan.steps.iter().rposition(|s| matches!(s, Step::Upload { .. })).unwrap();
        let buffers = plan.buffers.len();
        let Step::Upload { from, .. } = &mut plan.steps[at] else { panic!() };
        let copy = plan.buffers[*from].clone();
        *from = buffers;
        plan.buffers.push(copy);
    });
    assert!(freed.iter().any(|n| n == "source"), "{freed:?}");
    // A load that writes beside its rows.
    let beside = failed_by(|plan| {
        let at = plan.steps.iter().rposition(|s| matches!(s, Step::Upload { .. })).unwrap();
        plan.steps.insert(at, Step::Fill { tensor: 0, byte: 1 });
    });
    assert!(beside.iter().any(|n| n == "outside"), "{beside:?}");
    // A save that reads beside its rows.
    let shifted = failed_by(|plan| {
        for step in &mut plan.steps {
            if let Step::Fetch { parts, .. } = step {
                parts.iter_mut().filter(|p| p.here.at > 0).for_each(|p| p.here.at -= 1);
            }
        }
    });
    assert!(shifted.iter().any(|n| n == "blob" || n == "queued"), "{shifted:?}");
}
