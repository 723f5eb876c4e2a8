//! A case: an op's parameters and recipe plus a seed. Its id is its text.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rayon::prelude::*;

use crate::draw::Draw;
use crate::id::{IdError, Parts, VERSION};
use crate::inputs::Inputs;
use crate::judge::Oracle;
use crate::llama::case_type::LLAMA;
use crate::op::{CaseType, Op, Program};
use crate::plan::{Layout, Plan, Tensor};
use crate::state::case_type;
use crate::state::memory::Memory;
use crate::state::stages::Stages;
use crate::{argsort, moe_layer, mul_mat_id, top_k};

/// Every op.
pub const OPS: &[Op] = &[
    mul_mat_id::OP,
    argsort::OP,
    top_k::OP,
    case_type::KV,
    case_type::RECURRENT,
    case_type::HYBRID,
    case_type::CHECKPOINT,
    LLAMA,
    moe_layer::OP,
];

/// One case.
#[derive(Clone, Debug)]
pub struct Case {
    /// Seed of the data and routing.
    pub seed: u64,
    body: Arc<dyn CaseType>,
}

impl Case {
    /// The `index`-th case of the endless sequence that belongs to `seed` (`conform run --seed N`).
    ///
    /// Shapes and recipe come from ChaCha8 seeded with the little-endian bytes of `seed` and `index`;
    /// the case's own seed is the next 32 bits of the same stream.
    pub fn draw(seed: u64, index: u64) -> Self {
        let mut draw = Self::drawer(seed, index, 0);
        // Expert matmul has by far the larger space of shapes, types and recipes; of the others a sort is drawn twice
        // as often as a top-k.
        let op = match draw.one_in(4) {
            false => mul_mat_id::OP,
            true if draw.one_in(3) => top_k::OP,
            true => argsort::OP,
        };
        let body = (op.draw)(&mut draw);
        Case { seed: u64::from(draw.bits32()), body }
    }

    /// The same for matmuls whose weights only a build decodes; they have a sequence of their own.
    pub fn draw_by_build(seed: u64, index: u64) -> Self {
        let mut draw = Self::drawer(seed, index, 1);
        let body = mul_mat_id::draw_by_build(&mut draw);
        Case { seed: u64::from(draw.bits32()), body }
    }

    /// The same for state that is saved and loaded; it has a sequence of its own.
    pub fn draw_state(seed: u64, index: u64) -> Self {
        let mut draw = Self::drawer(seed, index, 2);
        let ops = [
            case_type::KV,
            case_type::KV,
            case_type::KV,
            case_type::RECURRENT,
            case_type::HYBRID,
            case_type::CHECKPOINT,
        ];
        let at = draw.between(0, ops.len() - 1);
        let body = (ops[at].draw)(&mut draw);
        Case { seed: u64::from(draw.bits32()), body }
    }

    /// The same for programs of several steps, layers and sequences of calls; they have a sequence of their own.
    pub fn draw_steps(seed: u64, index: u64) -> Self {
        let mut draw = Self::drawer(seed, index, 3);
        let body = if draw.one_in(2) { mul_mat_id::draw_sequence(&mut draw) } else { (moe_layer::OP.draw)(&mut draw) };
        Case { seed: u64::from(draw.bits32()), body }
    }

    fn drawer(seed: u64, index: u64, sequence: u8) -> Draw {
        let mut key = [0u8; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&index.to_le_bytes());
        key[16] = sequence;
        Draw::new(ChaCha8Rng::from_seed(key))
    }

    /// The case of an op with these params and recipe sections.
    pub fn from_sections(sections: &str, seed: u64) -> Result<Self, IdError> {
        format!("{sections}/{VERSION}-{seed:x}").parse()
    }

    /// The canonical id.
    pub fn id(&self) -> String {
        self.to_string()
    }

    /// What the case unfolds to.
    pub fn plan(&self) -> Plan {
        let Program { tensors, buffers, steps, fresh_routing } = self.body.program(self.seed);
        Plan { case: self.id(), tensors, buffers, steps, fresh_routing }
    }

    /// Fills one input tensor's allocation, rows in parallel.
    pub fn fill(&self, tensor: usize, t: &Tensor, bytes: &mut [u8]) {
        let block = t.ty.block_len();
        let before = t.ty.row_bytes(t.start[0] / block * block);
        bytes.par_chunks_mut(t.parent_row_bytes()).with_min_len(16).enumerate().for_each(|(r, row)| {
            let Some(at) = t.view_row(r) else {
                return self.body.fill_margin(self.seed, tensor, row);
            };
            let (head, rest) = row.split_at_mut(before);
            let (view, tail) = rest.split_at_mut(t.row_bytes());
            self.body.fill_margin(self.seed, tensor, head);
            self.body.fill_row(self.seed, tensor, at, view);
            self.body.fill_margin(self.seed, tensor, tail);
        });
    }

    /// Fills every input into its place of the input file.
    pub fn fill_all(&self, plan: &Plan, layout: &Layout, file: &mut [u8]) {
        for (i, t) in plan.tensors.iter().enumerate() {
            if let Some(at) = layout.source[i] {
                self.fill(i, t, &mut file[at..at + t.parent_bytes()]);
            }
        }
        for (i, (buffer, at)) in plan.buffers.iter().zip(&layout.given).enumerate() {
            if let Some(at) = at {
                self.body.fill_buffer(self.seed, i, &mut file[*at..at + buffer.bytes]);
            }
        }
    }

    /// The right values for the given inputs.
    pub fn oracle(&self, inputs: &Inputs<'_>) -> Box<dyn Oracle> {
        self.body.oracle(self.seed, inputs)
    }

    /// What a person wants to see of the case beyond its tensors: one line each.
    pub fn describe(&self, inputs: &Inputs<'_>) -> Vec<String> {
        self.body.describe(self.seed, inputs)
    }

    /// The same case for an engine with other stages, to see that it notices; `None` where the op has no engine.
    pub fn with_stages(&self, stages: Stages) -> Option<Self> {
        Some(Case { seed: self.seed, body: self.body.with_stages(stages)? })
    }

    /// The memory that an engine has after the case; `None` where the op has no engine.
    pub fn engine(&self) -> Option<Memory> {
        self.body.engine(self.seed)
    }

    /// The op's own part.
    pub fn body(&self) -> &dyn CaseType {
        &*self.body
    }

    /// The group under `cargo test`: `mul_mat_id/mxfp4`.
    pub fn group(&self) -> String {
        format!("{}/{}", self.body.op(), self.body.group())
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = &self.body;
        write!(f, "{}/{}/{}/{VERSION}-{:x}", b.op(), b.params(), b.recipe(), self.seed)
    }
}

impl FromStr for Case {
    type Err = IdError;

    fn from_str(id: &str) -> Result<Self, IdError> {
        let error = |why| IdError { id: id.to_owned(), why };
        let parts = Parts::split(id).map_err(error)?;
        let op = OPS.iter().find(|op| op.name == parts.op).ok_or_else(|| {
            let known: Vec<_> = OPS.iter().map(|op| op.name).collect();
            error(format!("unknown op '{}'; known: {}", parts.op, known.join(", ")))
        })?;
        let body = (op.parse)(parts.params, parts.recipe).map_err(error)?;
        let case = Case { seed: parts.seed, body };
        let canonical = case.id();
        if canonical != id {
            return Err(error(format!("is not in canonical form; write {canonical}")));
        }
        Ok(case)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Cost;

    #[test]
    fn named_ids_are_valid_and_affordable() {
        for (sections, reason) in OPS.iter().flat_map(|op| op.named) {
            let case = Case::from_sections(sections, 1).unwrap();
            let cost = case.body().cost();
            // Named cases may cost twice what drawn ones may: the longest sort does.
            assert!(cost.operations <= 2 * Cost::MAX_OPERATIONS, "{sections}");
            assert!(!reason.is_empty());
        }
    }
}
