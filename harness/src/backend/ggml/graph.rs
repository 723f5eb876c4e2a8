//! A plan on a device: its tensors in device memory, its steps as operations.
//!
//! Weights lie in a buffer of their own, because some types of buffer change
//! their layout. A step's result is the output's allocation itself: ggml's
//! operations have results of their own and cannot write into a view.

use std::ffi::c_int;
use std::ops::Range;

use conform_cases::plan::{Order, Plan, Role, Step};

use super::api::{BufferType, Tensor};
use super::catalogue::Handle;
use super::library::Ggml;
use super::memory::{Buffer, Context, Graph};
use super::types;
use crate::backend::{DeviceError, LoadError};

/// The default number of nodes of a graph: more steps need more than one.
const MOST_STEPS: usize = 1024;

/// A loaded plan. Fields are dropped in this order: what refers to something else goes first.
pub(super) struct Loaded {
    /// The graph of the steps that ran last.
    graph: Option<(Range<usize>, Graph)>,
    _buffers: Vec<Buffer>,
    /// The allocation of each tensor of the plan.
    pub(super) tensors: Vec<*mut Tensor>,
    /// The operations of each step, mostly one; none for those that move bytes.
    pub(super) ops: Vec<Vec<*mut Tensor>>,
    /// Views before what they look into.
    _contexts: [Context; 2],
    pub(super) plan: Plan,
}

impl Loaded {
    /// Allocates tensors and builds operations, without asking whether the device supports them.
    pub(super) fn new(
        ggml: &'static Ggml,
        handle: &Handle,
        usual: *mut BufferType,
        plan: &Plan,
    ) -> Result<Self, LoadError> {
        if plan.steps.len() > MOST_STEPS {
            let steps = plan.steps.len();
            return Err(LoadError::Unsupported(format!("{steps} steps, a graph has room for {MOST_STEPS}")));
        }
        if handle.packed.is_some() && !plan.tensors.iter().any(|t| t.role == Role::Weights) {
            let why = "the plan has no weights, and only they lie in this type of buffer: see the device without it";
            return Err(LoadError::Unsupported(why.to_owned()));
        }
        if plan.steps.iter().all(Step::moves_bytes) {
            return Self::bytes_only(ggml, handle, usual, plan);
        }
        let numbers = plan.tensors.iter().map(|t| types::number(ggml, t.ty).map_err(LoadError::Unsupported));
        let numbers: Vec<c_int> = numbers.collect::<Result<_, _>>()?;
        let mut tensors = vec![std::ptr::null_mut(); plan.tensors.len()];
        let bytes = |role: &[Role]| {
            plan.tensors.iter().filter(|t| role.contains(&t.role)).map(conform_cases::plan::Tensor::parent_bytes).sum()
        };

        let weights = Context::of_tensors(ggml, plan.tensors.len())?;
        for (i, t) in plan.tensors.iter().enumerate().filter(|(_, t)| t.role == Role::Weights) {
            if handle.packed.is_some() && !t.is_contiguous() {
                let why =
                    format!("'{}' is a view, and this type of buffer has its own layout of whole tensors", t.name);
                return Err(LoadError::Unsupported(why));
            }
            tensors[i] = weights.tensor(t, numbers[i]);
        }
        let mut buffers = Vec::new();
        if bytes(&[Role::Weights]) > 0 {
            let buffer = weights.allocate(handle.dev, handle.packed.unwrap_or(usual), bytes(&[Role::Weights]))?;
            buffer.holds_weights();
            buffers.push(buffer);
        }

        let rest = Context::of_tensors(ggml, plan.tensors.len() + 6 * plan.steps.len())?;
        for (i, t) in plan.tensors.iter().enumerate().filter(|(_, t)| t.role == Role::Input) {
            tensors[i] = rest.tensor(t, numbers[i]);
        }
        // What no operation writes is just memory.
        for (i, t) in plan.tensors.iter().enumerate().filter(|(i, t)| t.is_output() && !is_written(plan, *i)) {
            tensors[i] = rest.tensor(t, numbers[i]);
        }
        let mut ops = Vec::with_capacity(plan.steps.len());
        for (at, step) in plan.steps.iter().enumerate() {
            if step.moves_bytes() {
                ops.push(Vec::new());
                continue;
            }
            let op = Operation::of(plan, at, step)?;
            let source = |i: usize| match tensors[plan.allocation(i)] {
                raw if raw.is_null() => {
                    Err(DeviceError(format!("step {at} reads '{}' before it is written", plan.tensors[i].name)))
                }
                raw => Ok(rest.view(&plan.tensors[i], raw)),
            };
            let made = match *step {
                Step::MulMatId { weights, x, ids, .. } => {
                    vec![rest.mul_mat_id(source(weights)?, source(x)?, source(ids)?)]
                }
                Step::Argsort { x, order, .. } => vec![rest.argsort(source(x)?, c_int::from(order == Order::Desc))],
                Step::TopK { x, out } => rest.top_k(source(x)?, &plan.tensors[out])?,
                Step::Copy { .. }
                | Step::Upload { .. }
                | Step::Fetch { .. }
                | Step::Fill { .. }
                | Step::Llama { .. } => continue,
            };
            let target = &plan.tensors[op.out];
            let Some(&raw) = made.last() else { continue };
            if rest.bytes(raw) != target.parent_bytes() {
                let (has, wanted) = (rest.bytes(raw), target.parent_bytes());
                return Err(DeviceError(format!("'{}' has {has} bytes in ggml, not {wanted}", target.name)).into());
            }
            rest.name(raw, &target.name);
            if !tensors[op.out].is_null() {
                let why = format!("two steps write '{}': ggml's operations have results of their own", target.name);
                return Err(LoadError::Unsupported(why));
            }
            tensors[op.out] = raw;
            ops.push(made);
        }
        buffers.push(rest.allocate(handle.dev, usual, bytes(&[Role::Input, Role::Output]))?);
        for i in 0..tensors.len() {
            tensors[i] = tensors[plan.allocation(i)];
        }
        if let Some(i) = tensors.iter().position(|t| t.is_null()) {
            return Err(DeviceError(format!("no step writes '{}'", plan.tensors[i].name)).into());
        }
        Ok(Loaded { graph: None, _buffers: buffers, tensors, ops, _contexts: [rest, weights], plan: plan.clone() })
    }

    /// A plan that only moves bytes: every tensor is just memory.
    fn bytes_only(
        ggml: &'static Ggml,
        handle: &Handle,
        usual: *mut BufferType,
        plan: &Plan,
    ) -> Result<Self, LoadError> {
        let context = Context::of_tensors(ggml, plan.tensors.len())?;
        let numbers = plan.tensors.iter().map(|t| types::number(ggml, t.ty).map_err(LoadError::Unsupported));
        let numbers: Vec<c_int> = numbers.collect::<Result<_, _>>()?;
        let tensors = plan.tensors.iter().zip(numbers).map(|(t, number)| context.tensor(t, number)).collect();
        let bytes = plan.tensors.iter().map(conform_cases::plan::Tensor::parent_bytes).sum();
        let buffers = vec![context.allocate(handle.dev, usual, bytes)?];
        let empty = Context::of_tensors(ggml, 1)?;
        Ok(Loaded {
            graph: None,
            _buffers: buffers,
            tensors,
            ops: vec![Vec::new(); plan.steps.len()],
            _contexts: [context, empty],
            plan: plan.clone(),
        })
    }

    /// The graph of a range of steps.
    pub(super) fn graph(&mut self, ggml: &'static Ggml, steps: Range<usize>) -> Result<&Graph, DeviceError> {
        let ops = self.ops.get(steps.clone());
        let ops = ops.ok_or_else(|| DeviceError(format!("steps {steps:?} of a plan of {}", self.ops.len())))?;
        let nodes = ops.concat();
        let graph = match self.graph.take() {
            Some((of, graph)) if of == steps => graph,
            _ if ops.len() == self.ops.len() => Graph::whole(ggml, &nodes)?,
            _ => Graph::part(ggml, &nodes)?,
        };
        Ok(&self.graph.insert((steps, graph)).1)
    }
}

/// True if a step computes it.
fn is_written(plan: &Plan, tensor: usize) -> bool {
    let mut operations = plan.steps.iter().filter(|step| !step.moves_bytes());
    // An operation names its result last.
    operations.any(|step| step.tensors().last() == Some(&tensor))
}

/// What a step writes.
struct Operation {
    out: usize,
}

impl Operation {
    /// Looks at what ggml would assert, and so end the process for: plans are checked where they are made, and a
    /// foreign parent gets an answer.
    fn of(plan: &Plan, at: usize, step: &Step) -> Result<Self, LoadError> {
        let shape = |i: usize| plan.tensors[i].shape;
        let (fits, out, wanted) = match *step {
            Step::MulMatId { weights, x, ids, out } => {
                let ([k, m, _, w3], [xk, b, n, x3], [used, tokens, i2, i3]) = (shape(weights), shape(x), shape(ids));
                let ones = [w3, x3, i2, i3] == [1; 4];
                (ones && k == xk && n == tokens && b > 0 && used % b == 0, out, [m, used, n, 1])
            }
            Step::Argsort { x, out, .. } => (true, out, shape(x)),
            Step::TopK { x, out } => {
                let ([cols, r1, r2, r3], [k, ..]) = (shape(x), shape(out));
                (k <= cols, out, [k, r1, r2, r3])
            }
            Step::Copy { .. } | Step::Upload { .. } | Step::Fetch { .. } | Step::Fill { .. } | Step::Llama { .. } => {
                return Err(DeviceError(format!("step {at} is no operation")).into());
            }
        };
        let target = &plan.tensors[out];
        if !fits || target.shape != wanted || target.role != Role::Output {
            return Err(DeviceError(format!("the shapes of step {at} do not fit together")).into());
        }
        if !target.is_contiguous() {
            let why = format!("'{}' is a view: ggml's operations have results of their own", target.name);
            return Err(LoadError::Unsupported(why));
        }
        Ok(Operation { out })
    }
}
