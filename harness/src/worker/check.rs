//! Is a request to run something that can be run at all? Everything that later arithmetic and slicing relies on is
//! looked at here, so that garbage in a message gets an answer and not a crash.

use conform_cases::plan::{Layout, Plan, Role, Tensor};

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
        let output = tensor.role == Role::Output;
        place("source", bytes, layout.source[i], inputs, !output)?;
        place("readback", bytes, layout.readback[i], results, false)?;
        for run in &layout.results {
            place("results", bytes, run[i], results, output)?;
        }
        let is_decoded = !output && tensor.ty.is_decoded_by_build();
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
    for (i, step) in plan.steps.iter().enumerate() {
        if let Some(t) = step.tensors().into_iter().find(|t| *t >= count) {
            return Err(format!("step {i} names tensor {t}, the plan has {count}"));
        }
    }
    Ok(())
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
    use conform_cases::plan::{Order, Step};

    fn plan() -> Plan {
        Plan {
            case: "c".into(),
            tensors: vec![
                Tensor::whole("x", ElemType::F32, [8, 2, 1, 1], Role::Input),
                Tensor::whole("o", ElemType::I32, [8, 2, 1, 1], Role::Output),
            ],
            steps: vec![Step::Argsort { x: 0, out: 1, order: Order::Asc }],
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
}
