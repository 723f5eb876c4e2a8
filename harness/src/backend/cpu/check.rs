//! What a plan asks for, checked: a plan arrives over a wire, and later stages index without asking again.
//!
//! Every refusal names the step or the tensor and the number that is wrong.

use conform_cases::formats::ElemType;
use conform_cases::plan::{Order, Plan, Role, Step, Tensor};

use super::super::{LoadError, NO_LLAMA};
use super::arguments::Sizes;

/// A checked step; tensors are positions in the plan.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    /// One expert matmul.
    MulMatId {
        weights: usize,
        x: usize,
        ids: usize,
        out: usize,
        sizes: Sizes,
        /// Where its sorted slots are, if it sorts any.
        table: usize,
        /// A single token of mxfp4 weights takes the gemv.
        single: bool,
    },
    /// One sort.
    Argsort { x: usize, out: usize, order: Order },
    /// One top-k.
    TopK { x: usize, out: usize, k: usize },
    /// Nothing: whoever runs the plan moves the bytes.
    Moves,
}

impl Job {
    /// The tensor that the job writes.
    pub(super) fn out(self) -> Option<usize> {
        match self {
            Job::MulMatId { out, .. } | Job::Argsort { out, .. } | Job::TopK { out, .. } => Some(out),
            Job::Moves => None,
        }
    }
}

/// Checks all tensors and steps of a plan.
pub(super) fn jobs(plan: &Plan) -> Result<Vec<Job>, LoadError> {
    plan.tensors.iter().try_for_each(check_tensor)?;
    (0..plan.tensors.len()).try_for_each(|i| check_view(plan, i))?;
    plan.steps.iter().enumerate().map(|(i, step)| Checker { plan, step: i }.job(step)).collect()
}

fn refuse<T>(why: String) -> Result<T, LoadError> {
    Err(LoadError::Unsupported(why))
}

/// A tensor whose box lies in its allocation, in whole blocks, and whose bytes can be counted.
fn check_tensor(t: &Tensor) -> Result<(), LoadError> {
    let name = &t.name;
    for d in 0..4 {
        if t.shape[d] == 0 {
            return refuse(format!("tensor {name} is empty in dimension {d}"));
        }
        if t.start[d].checked_add(t.shape[d]).is_none_or(|end| end > t.parent[d]) {
            let (start, shape, parent) = (t.start[d], t.shape[d], t.parent[d]);
            return refuse(format!("tensor {name}: {start} + {shape} exceeds the parent's {parent} in dimension {d}"));
        }
    }
    let unit = t.ty.block_len();
    if let Some(odd) = [t.parent[0], t.start[0], t.shape[0]].into_iter().find(|v| v % unit != 0) {
        return refuse(format!("tensor {name}: {odd} is not a whole number of {} blocks", t.ty));
    }
    let bytes = t.parent.iter().try_fold(t.ty.block_bytes(), |all, d| all.checked_mul(*d));
    match bytes {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
        _ => refuse(format!("tensor {name}: the bytes of {:?} cannot be counted", t.parent)),
    }
}

/// A view of a tensor that has memory, of the same kind.
fn check_view(plan: &Plan, view: usize) -> Result<(), LoadError> {
    let (t, of) = (&plan.tensors[view], plan.allocation(view));
    match plan.tensors.get(of) {
        Some(has) if of == view || plan.allocation(of) == of && (has.ty, has.parent) == (t.ty, t.parent) => Ok(()),
        _ => refuse(format!("tensor {}: it is no view of tensor {of}", t.name)),
    }
}

/// Checks one step of a plan.
struct Checker<'a> {
    plan: &'a Plan,
    step: usize,
}

impl Checker<'_> {
    fn refuse<T>(&self, why: String) -> Result<T, LoadError> {
        refuse(format!("step {}: {why}", self.step))
    }

    fn job(&self, step: &Step) -> Result<Job, LoadError> {
        match *step {
            Step::MulMatId { weights, x, ids, out } => self.mul_mat_id(weights, x, ids, out),
            Step::Argsort { x, out, order } => {
                let shape = self.rows_of_keys(x, out)?;
                self.shape(out, "out", shape)?;
                Ok(Job::Argsort { x, out, order })
            }
            Step::TopK { x, out } => {
                let [cols, r1, r2, r3] = self.rows_of_keys(x, out)?;
                let k = self.plan.tensors[out].shape[0];
                self.shape(out, "out", [k, r1, r2, r3])?;
                if k > cols {
                    return self.refuse(format!("the {k} largest of {cols} columns"));
                }
                Ok(Job::TopK { x, out, k })
            }
            Step::Copy { .. } | Step::Upload { .. } | Step::Fetch { .. } | Step::Fill { .. } => Ok(Job::Moves),
            Step::Llama { .. } => Err(LoadError::Unsupported(NO_LLAMA.to_owned())),
        }
    }

    /// The shape of keys whose indices go into `out`.
    fn rows_of_keys(&self, x: usize, out: usize) -> Result<[usize; 4], LoadError> {
        let shape = self.tensor(x, "x", &[ElemType::F32])?.shape;
        self.tensor(out, "out", &[ElemType::I32])?;
        self.output(out, &[x])?;
        if shape[0] > i32::MAX as usize {
            return self.refuse(format!("{} columns exceed an i32 index", shape[0]));
        }
        Ok(shape)
    }

    fn mul_mat_id(&self, weights: usize, x: usize, ids: usize, out: usize) -> Result<Job, LoadError> {
        let w = self.tensor(weights, "weights", &ElemType::WEIGHTS)?;
        let [k, m, experts, _] = w.shape;
        let b = self.tensor(x, "x", &[ElemType::F32])?.shape[1];
        let [used, n, ..] = self.tensor(ids, "ids", &[ElemType::I32])?.shape;
        self.tensor(out, "out", &[ElemType::F32])?;
        if matches!(w.role, Role::View { .. }) {
            return self.refuse(format!("weights ({}) are a view of another tensor", w.name));
        }
        self.shape(weights, "weights", [k, m, experts, 1])?;
        self.shape(x, "x", [k, b, n, 1])?;
        self.shape(ids, "ids", [used, n, 1, 1])?;
        self.shape(out, "out", [m, used, n, 1])?;
        self.output(out, &[weights, x, ids])?;
        // Slots and experts are 32-bit on the device, and the largest value means padding.
        for (what, count) in [("slots", used.checked_mul(n)), ("experts", Some(experts))] {
            if count.is_none_or(|count| count >= u32::MAX as usize) {
                return self.refuse(format!("more than {} {what}", u32::MAX - 1));
            }
        }
        let sizes = Sizes { k, m, experts, used, b, n };
        Ok(Job::MulMatId { weights, x, ids, out, sizes, table: 0, single: n == 1 && w.ty == ElemType::Mxfp4 })
    }

    fn tensor(&self, index: usize, what: &str, types: &[ElemType]) -> Result<&Tensor, LoadError> {
        let Some(t) = self.plan.tensors.get(index) else {
            let count = self.plan.tensors.len();
            return self.refuse(format!("{what} is tensor {index} of {count}"));
        };
        if !types.contains(&t.ty) {
            return self.refuse(format!("{what} ({}) is {}", t.name, t.ty));
        }
        Ok(t)
    }

    fn shape(&self, index: usize, what: &str, want: [usize; 4]) -> Result<(), LoadError> {
        let t = &self.plan.tensors[index];
        if t.shape != want {
            return self.refuse(format!("{what} ({}) is {:?}, the other tensors want {want:?}", t.name, t.shape));
        }
        Ok(())
    }

    fn output(&self, out: usize, inputs: &[usize]) -> Result<(), LoadError> {
        let t = &self.plan.tensors[out];
        if t.role != Role::Output {
            return self.refuse(format!("out ({}) is not an output", t.name));
        }
        if !t.is_contiguous() {
            return self.refuse(format!("out ({}) is a view", t.name));
        }
        if inputs.iter().any(|input| self.plan.allocation(*input) == out) {
            return self.refuse(format!("out ({}) is also an input", t.name));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let t = Tensor::whole;
        Plan {
            case: String::new(),
            tensors: vec![
                t("w", ElemType::Q8_0, [64, 3, 2, 1], Role::Weights),
                t("x", ElemType::F32, [64, 1, 5, 1], Role::Input),
                t("ids", ElemType::I32, [2, 5, 1, 1], Role::Input),
                t("out", ElemType::F32, [3, 2, 5, 1], Role::Output),
                t("order", ElemType::I32, [3, 2, 5, 1], Role::Output),
            ],
            steps: vec![
                Step::MulMatId { weights: 0, x: 1, ids: 2, out: 3 },
                Step::Argsort { x: 3, out: 4, order: Order::Asc },
            ],
            ..Plan::default()
        }
    }

    #[test]
    fn a_consistent_plan_passes() {
        assert_eq!(jobs(&plan()).unwrap().len(), 2);
    }

    #[test]
    fn refusals_name_what_is_wrong() {
        let refused = |edit: fn(&mut Plan), want: &str| {
            let mut plan = plan();
            edit(&mut plan);
            let why = jobs(&plan).unwrap_err().to_string();
            assert!(why.contains(want), "{why:?} does not say {want:?}");
        };
        refused(|p| p.tensors[0].parent[2] = 1, "tensor w: 0 + 2 exceeds the parent's 1 in dimension 2");
        refused(|p| p.tensors[0].start[0] = usize::MAX, "exceeds");
        refused(|p| (p.tensors[0].parent[0], p.tensors[0].start[0]) = (96, 16), "16 is not a whole number of q8_0");
        refused(|p| p.tensors[1].shape[0] = 0, "tensor x is empty in dimension 0");
        refused(|p| p.tensors[1].parent = [1 << 40; 4], "cannot be counted");
        refused(|p| p.tensors[1] = p.tensors[2].clone(), "step 0: x (ids) is i32");
        refused(|p| p.tensors[1] = Tensor::whole("x", ElemType::F32, [32, 1, 5, 1], Role::Input), "want [64, 1, 5, 1]");
        refused(|p| p.tensors[2].role = Role::View { of: 9 }, "tensor ids: it is no view of tensor 9");
        refused(|p| p.tensors[2].role = Role::View { of: 1 }, "tensor ids: it is no view of tensor 1");
        refused(|p| p.tensors[3].role = Role::Input, "step 0: out (out) is not an output");
        refused(|p| p.tensors[4].parent[0] += 1, "step 1: out (order) is a view");
        refused(|p| p.steps[1] = Step::TopK { x: 9, out: 4 }, "step 1: x is tensor 9 of 5");
        refused(|p| (p.steps[1], p.tensors[4].shape[0]) = (Step::TopK { x: 3, out: 4 }, 4), "exceeds the parent's 3");
        refused(
            |p| {
                p.steps[1] = Step::TopK { x: 3, out: 4 };
                p.tensors[4] = Tensor::whole("order", ElemType::I32, [4, 2, 5, 1], Role::Output);
            },
            "step 1: the 4 largest of 3 columns",
        );
        refused(|p| p.steps[1] = Step::Argsort { x: 9, out: 4, order: Order::Asc }, "step 1: x is tensor 9 of 5");
    }
}
