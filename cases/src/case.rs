//! A case: an op's parameters and recipe plus a seed. Its id is its text.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rayon::prelude::*;

use crate::cost::Cost;
use crate::draw::Draw;
use crate::id::{IdError, Parts, VERSION};
use crate::judge::Oracle;
use crate::plan::{Layout, Plan, Role, Step, Tensor};
use crate::{argsort, mul_mat_id};

/// What an op must tell about one of its cases. A new op is one type that does, and one line in [`OPS`].
pub trait CaseType: fmt::Debug + Send + Sync {
    /// The op's name in ids.
    fn op(&self) -> &'static str;

    /// The params section of the id, canonical.
    fn params(&self) -> String;

    /// The recipe section of the id, canonical.
    fn recipe(&self) -> String;

    /// Tensors and steps.
    fn tensors(&self) -> (Vec<Tensor>, Vec<Step>);

    /// Fills one row of the view of an input tensor. `at` are the row's coordinates in dimensions 1 to 3.
    fn fill_row(&self, seed: u64, tensor: usize, at: [usize; 3], row: &mut [u8]);

    /// Fills bytes of an input's allocation that lie outside the view: a kernel that reads them should show it.
    fn fill_margin(&self, seed: u64, tensor: usize, bytes: &mut [u8]);

    /// Work and memory.
    fn cost(&self) -> Cost;

    /// The name of the group of cases this one is run with under `cargo test`, below the op.
    fn group(&self) -> &'static str;

    /// A word for the kind of shape: which of a backend's paths it usually takes.
    fn shape_class(&self) -> &'static str;

    /// False where the op's contract does not bind foreign devices: there a failure is reported without gating.
    fn binds_foreign_devices(&self) -> bool;

    /// Computes the right values for the given inputs.
    fn oracle(&self, inputs: &Inputs<'_>) -> Box<dyn Oracle>;

    /// What a person wants to see of the case beyond its tensors: one line each.
    fn describe(&self, inputs: &Inputs<'_>) -> Vec<String>;
}

/// Reads the params and recipe sections of an id; the error is one line.
pub type Parse = fn(&str, &str) -> Result<Arc<dyn CaseType>, String>;

/// How the crate reaches an op.
pub struct Op {
    /// Name in ids.
    pub name: &'static str,
    /// Group names that its cases may have, in a fixed order.
    pub groups: &'static [&'static str],
    /// Reads params and recipe.
    pub parse: Parse,
    /// Draws a random case within a budget of multiply-adds (or compare-exchanges).
    pub draw: fn(&mut Draw) -> Arc<dyn CaseType>,
    /// Ids (without the version-seed section) of the cases that every profile starts with, each with the reason it is there.
    pub named: &'static [(&'static str, &'static str)],
}

/// Every op.
pub const OPS: &[Op] = &[mul_mat_id::OP, argsort::OP];

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
        let mut key = [0u8; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&index.to_le_bytes());
        let mut draw = Draw::new(ChaCha8Rng::from_seed(key));
        // Expert matmul has by far the larger space of shapes, types and recipes.
        let op = &OPS[usize::from(draw.one_in(4))];
        let body = (op.draw)(&mut draw);
        Case { seed: u64::from(draw.bits32()), body }
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
        let (tensors, steps) = self.body.tensors();
        Plan { case: self.id(), tensors, steps }
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

/// The bytes of a plan's inputs, as they lie in the input file.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The plan.
    pub plan: &'a Plan,
    layout: &'a Layout,
    file: &'a [u8],
}

impl<'a> Inputs<'a> {
    /// Inputs of `plan` in a file of `layout.input_bytes` bytes.
    pub fn new(plan: &'a Plan, layout: &'a Layout, file: &'a [u8]) -> Self {
        debug_assert_eq!(file.len(), layout.input_bytes);
        Inputs { plan, layout, file }
    }

    /// A tensor with the bytes of its allocation; outputs have none.
    pub fn tensor(&self, index: usize) -> (&'a Tensor, &'a [u8]) {
        let t = &self.plan.tensors[index];
        debug_assert_ne!(t.role, Role::Output);
        let bytes = self.layout.source[index].map_or(&[][..], |at| &self.file[at..at + t.parent_bytes()]);
        (t, bytes)
    }
}
