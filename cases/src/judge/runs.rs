//! What must hold of runs whatever the op: equal bits where they are promised, and inputs that nobody changed.

use std::collections::BTreeSet;

use super::{Capabilities, Check, Execution, Failure, RunBytes, poison_of};
use crate::formats::read_i32;
use crate::plan::Step;

/// An element that differs between the first run and another.
pub(super) struct Difference {
    /// The output tensor.
    output: usize,
    /// Elements of it that differ.
    count: usize,
    /// The first of them, and its words after the first run and after the other.
    first: (usize, u32, u32),
}

/// Where a run left other bits in these outputs than the first run did: the first of them that differs. Elements that
/// neither run wrote are no difference.
pub(super) fn difference(e: &Execution<'_>, outputs: &[usize], run: usize) -> Option<Difference> {
    let words = |output, run| {
        let bytes = RunBytes::new(e, run).tensor(output);
        read_i32(bytes).map(|word| word as u32)
    };
    let poisons = (poison_of(0), poison_of(run));
    outputs.iter().find_map(|output| {
        let differs = |(i, (a, b)): (usize, (u32, u32))| (a != b && (a, b) != poisons).then_some((i, a, b));
        let mut different = words(*output, 0).zip(words(*output, run)).enumerate().filter_map(differs);
        let first = different.next()?;
        Some(Difference { output: *output, count: 1 + different.count(), first })
    })
}

/// Every one of these runs must leave the bits of the first one.
pub(super) fn same_bits(
    name: &str,
    device: &Capabilities,
    e: &Execution<'_>,
    outputs: &[usize],
    runs: impl IntoIterator<Item = usize>,
) -> Check {
    let Some(d) = runs.into_iter().find_map(|run| difference(e, outputs, run)) else { return Check::passed(name) };
    let how = match name {
        "stepwise" => "the whole in one go and one step after the other",
        _ => "two runs on the same inputs",
    };
    let scratch = if device.scratch_poison { ", scratch memory refilled between them" } else { "" };
    let t = &e.plan.tensors[d.output];
    let whose = if outputs.len() > 1 { format!("{}: ", t.name) } else { String::new() };
    let what = format!("{whose}{} of {} elements differ between {how}{scratch}", d.count, t.elements());
    let (at, a, b) = d.first;
    Check::failed(
        name,
        Failure { worst: Some(format!("element {at}: {a:#010x}, then {b:#010x}")), ..Failure::new(what) },
    )
}

/// Inputs, margins included, must read back as they were written.
pub(super) fn inputs_check(device: &Capabilities, e: &Execution<'_>) -> Check {
    let neighbours = neighbours(e);
    unchanged("inputs", device, e, &|tensor| !neighbours.contains(&tensor))
}

/// And so must tensors that are there and that no step names, where a plan has some.
pub(super) fn neighbours_check(device: &Capabilities, e: &Execution<'_>) -> Option<Check> {
    let neighbours = neighbours(e);
    (!neighbours.is_empty()).then(|| unchanged("neighbours", device, e, &|tensor| neighbours.contains(&tensor)))
}

/// The inputs that no step names, nor a view of them, where a plan computes something.
fn neighbours(e: &Execution<'_>) -> BTreeSet<usize> {
    if e.plan.steps.iter().all(Step::moves_bytes) {
        return BTreeSet::new();
    }
    let named: BTreeSet<usize> =
        e.plan.steps.iter().flat_map(Step::tensors).map(|tensor| e.plan.allocation(tensor)).collect();
    (0..e.plan.tensors.len()).filter(|i| e.plan.tensors[*i].is_input() && !named.contains(i)).collect()
}

fn unchanged(name: &str, device: &Capabilities, e: &Execution<'_>, is_meant: &dyn Fn(usize) -> bool) -> Check {
    if !device.readable_inputs {
        return Check::not_possible(name, "the device's inputs can't be read back");
    }
    for (i, t) in e.plan.tensors.iter().enumerate().filter(|(i, t)| t.is_input() && is_meant(*i)) {
        let (Some(source), Some(back)) = (e.layout.source[i], e.layout.readback[i]) else { continue };
        let (before, after) = (&e.inputs[source..source + t.parent_bytes()], &e.results[back..back + t.parent_bytes()]);
        if before == after {
            continue;
        }
        let bad: Vec<usize> = (0..before.len()).filter(|b| before[*b] != after[*b]).collect();
        let (at, row) = (bad[0], bad[0] / t.parent_row_bytes());
        let place = match t.view_row(row) {
            Some(c) => format!("row {c:?} of the view"),
            None => "outside the view".to_owned(),
        };
        return Check::failed(
            name,
            Failure {
                what: format!("{}: {} of {} bytes changed", t.name, bad.len(), before.len()),
                worst: Some(format!("byte {at} ({place}): expected {:#04x}, got {:#04x}", before[at], after[at])),
                pattern: None,
            },
        );
    }
    Check::passed(name)
}
