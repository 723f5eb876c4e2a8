//! Is a request to run something that can be run at all? Everything that later arithmetic and slicing relies on is
//! looked at here, so that garbage in a message gets an answer and not a crash.

use conform_cases::plan::{Layout, Plan, Role, Step, Tensor};

/// Checks a plan and its layout against the lengths of the mapped files; an error is one line.
pub(super) fn check(plan: &Plan, layout: &Layout, runs: usize, inputs: usize, results: usize) -> Result<(), String> {
    let count = plan.tensors.len();
    let lists = [&layout.source, &layout.readback, &layout.decoded];
    if lists.into_iter().chain(&layout.results).any(|list| list.len() != count) {
        return Err(format!("layout does not list each of the plan's {count} tensors"));
    }
    if layout.results.len() != runs {
        return Err(format!("layout has results of {} runs, poisons ask for {runs}", layout.results.len()));
    }
    for (i, tensor) in plan.tensors.iter().enumerate() {
        let bytes =
            allocation(tensor).ok_or_else(|| format!("tensor {i} '{}' has an impossible shape", tensor.name))?;
        let place = |what: &str, bytes: usize, at: Option<usize>, file: usize, needed: bool| match at {
            Some(at) if at.checked_add(bytes).is_some_and(|end| end <= file) => Ok(()),
            None if !needed => Ok(()),
            None => Err(format!("tensor {i} '{}' has no {what} in the layout", tensor.name)),
            Some(at) => {
                Err(format!("tensor {i} '{}': {bytes} bytes of {what} at {at} do not fit in {file}", tensor.name))
            }
        };
        if let Role::View { of } = tensor.role {
            check_view(plan, i, of)?;
        }
        let (input, output) = (tensor.is_input(), tensor.is_output());
        place("source", bytes, layout.source[i], inputs, input)?;
        place("readback", bytes, layout.readback[i], results, false)?;
        for run in &layout.results {
            place("results", bytes, run[i], results, output)?;
        }
        let is_decoded = input && tensor.ty.is_decoded_by_build();
        if layout.decoded[i].is_some() && !is_decoded {
            return Err(format!(
                "tensor {i} '{}' is to be decoded and is no input of a type that needs it",
                tensor.name
            ));
        }
        // The view lies in the allocation, so its elements can be counted; four bytes each may still be too many.
        let numbers = tensor.elements().checked_mul(4);
        let numbers = numbers.ok_or_else(|| format!("tensor {i} '{}' has too many elements", tensor.name))?;
        place("decoded numbers", numbers, layout.decoded[i], results, is_decoded)?;
    }
    check_buffers(plan, layout, runs, inputs, results)?;
    for (i, step) in plan.steps.iter().enumerate() {
        if let Some(t) = step.tensors().into_iter().find(|t| *t >= count) {
            return Err(format!("step {i} names tensor {t}, the plan has {count}"));
        }
        check_parts(plan, step).map_err(|why| format!("step {i}: {why}"))?;
    }
    Ok(())
}

/// A view looks into the allocation of a tensor that has one, and has the same idea of it.
fn check_view(plan: &Plan, view: usize, of: usize) -> Result<(), String> {
    let t = &plan.tensors[view];
    match plan.tensors.get(of) {
        Some(has) if !matches!(has.role, Role::View { .. }) && (has.ty, has.parent) == (t.ty, t.parent) => Ok(()),
        Some(has) => Err(format!("tensor {view} '{}' is no view of tensor {of} '{}'", t.name, has.name)),
        None => {
            Err(format!("tensor {view} '{}' is a view of tensor {of}, the plan has {}", t.name, plan.tensors.len()))
        }
    }
}

fn check_buffers(plan: &Plan, layout: &Layout, runs: usize, inputs: usize, results: usize) -> Result<(), String> {
    let count = plan.buffers.len();
    let of_runs = if count == 0 { 0 } else { runs };
    if layout.given.len() != count || layout.left.len() != of_runs || layout.left.iter().any(|l| l.len() != count) {
        return Err(format!("layout does not list each of the plan's {count} buffers"));
    }
    for (i, buffer) in plan.buffers.iter().enumerate() {
        let place = |at: Option<usize>, file: usize, needed: bool| match at {
            Some(at) if at.checked_add(buffer.bytes).is_some_and(|end| end <= file) => Ok(()),
            None if !needed => Ok(()),
            at => Err(format!("buffer {i} '{}': {} bytes at {at:?} do not fit in {file}", buffer.name, buffer.bytes)),
        };
        place(layout.given[i], inputs, buffer.is_given)?;
        for left in &layout.left {
            place(left[i], results, !buffer.is_given)?;
        }
    }
    Ok(())
}

/// Pieces lie inside of what they are pieces of.
fn check_parts(plan: &Plan, step: &Step) -> Result<(), String> {
    let buffer = |index: usize| {
        plan.buffers.get(index).ok_or_else(|| format!("names buffer {index}, the plan has {}", plan.buffers.len()))
    };
    let (parts, other) = match step {
        Step::Copy { from, parts } => (parts, plan.tensors[*from].parent_bytes()),
        Step::Upload { from, parts } => (parts, buffer(*from)?.bytes),
        Step::Fetch { to, parts } if buffer(*to)?.is_given => {
            return Err(format!("{} pieces are fetched into buffer {to}, which is given", parts.len()));
        }
        Step::Fetch { to, parts } => (parts, buffer(*to)?.bytes),
        _ => return Ok(()),
    };
    match parts.iter().position(|p| !p.fits(plan.tensors[p.tensor].parent_bytes(), other)) {
        Some(i) => Err(format!("part {i} does not lie inside of what it is a part of: {:?}", parts[i])),
        None => Ok(()),
    }
}

/// Bytes of a tensor's allocation, or `None` where its geometry makes no sense or overflows.
fn allocation(tensor: &Tensor) -> Option<usize> {
    let unit = [tensor.ty.block_len(), 1, 1, 1];
    for (d, unit) in unit.into_iter().enumerate() {
        let (parent, start, shape) = (tensor.parent[d], tensor.start[d], tensor.shape[d]);
        if shape == 0 || [parent, start, shape].iter().any(|n| n % unit != 0) || start.checked_add(shape)? > parent {
            return None;
        }
    }
    let blocks = tensor.parent.iter().try_fold(1usize, |n, d| n.checked_mul(*d))? / tensor.ty.block_len();
    blocks.checked_mul(tensor.ty.block_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::formats::ElemType;
    use conform_cases::plan::{Buffer, Order, Part, Place};

    fn plan() -> Plan {
        Plan {
            case: "c".into(),
            tensors: vec![
                Tensor::whole("x", ElemType::F32, [8, 2, 1, 1], Role::Input),
                Tensor::whole("o", ElemType::I32, [8, 2, 1, 1], Role::Output),
            ],
            steps: vec![Step::Argsort { x: 0, out: 1, order: Order::Asc }],
            ..Plan::default()
        }
    }

    fn why(change: impl FnOnce(&mut Plan, &mut Layout)) -> String {
        let mut plan = plan();
        let mut layout = Layout::new(&plan, 2);
        let (inputs, results) = (layout.input_bytes, layout.result_bytes);
        change(&mut plan, &mut layout);
        check(&plan, &layout, 2, inputs, results).err().unwrap_or_default()
    }

    #[test]
    fn a_real_plan_passes() {
        assert_eq!(why(|_, _| ()), "");
    }

    #[test]
    fn garbage_is_named() {
        assert!(why(|p, _| p.tensors[0].parent[3] = usize::MAX).contains("impossible shape"));
        assert!(why(|p, _| p.tensors[0].start[1] = usize::MAX).contains("impossible shape"));
        assert!(why(|p, _| p.tensors[0].ty = ElemType::Q4_0).contains("impossible shape"));
        assert!(why(|p, _| p.tensors[0].shape[2] = 0).contains("impossible shape"));
        assert!(why(|p, _| p.tensors[0].role = Role::View { of: 2 }).contains("is a view of tensor 2, the plan has 2"));
        assert!(why(|p, _| p.tensors[0].role = Role::View { of: 0 }).contains("is no view of tensor 0 'x'"));
        assert!(why(|p, _| p.tensors[0].role = Role::View { of: 1 }).contains("is no view of tensor 1 'o'"));
        assert!(
            why(|p, _| p.steps = vec![Step::Argsort { x: 0, out: 2, order: Order::Asc }]).contains("names tensor 2")
        );
        assert!(why(|_, l| l.source[0] = Some(usize::MAX)).contains("do not fit"));
        assert!(why(|_, l| l.results[1][1] = Some(1 << 20)).contains("do not fit"));
        assert!(why(|_, l| l.source[0] = None).contains("no source"));
        assert!(why(|_, l| l.readback.truncate(1)).contains("does not list each"));
        assert!(why(|_, l| l.decoded.truncate(1)).contains("does not list each"));
        assert!(why(|_, l| l.decoded[0] = Some(0)).contains("no input of a type that needs it"));
        assert!(why(|_, l| l.decoded[1] = Some(0)).contains("no input of a type that needs it"));
        let blocks = |p: &mut Plan| p.tensors[0] = Tensor::whole("x", ElemType::Iq4Nl, [32, 2, 1, 1], Role::Input);
        assert!(why(|p, _| blocks(p)).contains("no decoded numbers in the layout"));
        let numbers = |p: &mut Plan, l: &mut Layout| (blocks(p), l.decoded[0] = Some(700)).1;
        assert!(why(numbers).contains("256 bytes of decoded numbers at 700 do not fit"));
        assert!(why(|_, l| l.results.truncate(1)).contains("results of 1 runs"));
    }

    #[test]
    fn pieces_must_lie_inside() {
        let moves = |step: fn(Vec<Part>) -> Step, change: fn(&mut Part), given: bool| {
            let part = Place { at: 0, stride: 16 };
            let mut part = Part { tensor: 0, here: part, there: part, size: 16, count: 4 };
            change(&mut part);
            let mut plan = plan();
            plan.buffers = vec![Buffer { name: "blob".into(), bytes: 64, is_given: given }];
            plan.steps = vec![step(vec![part])];
            let layout = Layout::new(&plan, 2);
            check(&plan, &layout, 2, layout.input_bytes, layout.result_bytes).err().unwrap_or_default()
        };
        let upload = |parts| Step::Upload { from: 0, parts };
        let fetch = |parts| Step::Fetch { to: 0, parts };
        let copy = |parts| Step::Copy { from: 1, parts };
        for step in [upload, fetch, copy] {
            assert_eq!(moves(step, |_| (), false), "");
            assert!(moves(step, |p| p.count = 5, false).contains("part 0 does not lie inside"));
            assert!(moves(step, |p| p.here.stride = usize::MAX, false).contains("part 0 does not lie inside"));
            assert!(moves(step, |p| p.there.at = 1, false).contains("part 0 does not lie inside"));
            assert!(moves(step, |p| p.tensor = 2, false).contains("names tensor 2"));
        }
        assert!(moves(fetch, |_| (), true).contains("which is given"));
        assert!(moves(|parts| Step::Upload { from: 1, parts }, |_| (), true).contains("names buffer 1"));
    }
}
