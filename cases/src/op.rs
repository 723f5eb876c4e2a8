//! What an op is: a case type, and how the crate reaches it.

use std::fmt;
use std::sync::Arc;

use crate::cost::Cost;
use crate::draw::Draw;
use crate::inputs::Inputs;
use crate::judge::{Capabilities, Oracle};
use crate::model::Model;
use crate::plan::{Buffer, Step, Tensor};
use crate::state::memory::Memory;
use crate::state::stages::Stages;

/// What an op must tell about one of its cases. A new op is one type that does, and one line in [`OPS`](crate::case::OPS).
pub trait CaseType: fmt::Debug + Send + Sync {
    /// The op's name in ids.
    fn op(&self) -> &'static str;

    /// The params section of the id, canonical.
    fn params(&self) -> String;

    /// The recipe section of the id, canonical.
    fn recipe(&self) -> String;

    /// Tensors, host memory and steps.
    fn program(&self, seed: u64) -> Program;

    /// Fills one row of the view of an input tensor. `at` are the row's coordinates in dimensions 1 to 3.
    fn fill_row(&self, seed: u64, tensor: usize, at: [usize; 3], row: &mut [u8]);

    /// Fills bytes of an input's allocation that lie outside the view: a kernel that reads them should show it.
    fn fill_margin(&self, seed: u64, tensor: usize, bytes: &mut [u8]);

    /// The same case for an engine with other stages; `None` where the op has no engine.
    fn with_stages(&self, _stages: Stages) -> Option<Arc<dyn CaseType>> {
        None
    }

    /// The memory that an engine has after the case; `None` where the op has no engine.
    fn engine(&self, _seed: u64) -> Option<Memory> {
        None
    }

    /// Fills host memory whose bytes are given.
    fn fill_buffer(&self, _seed: u64, _buffer: usize, _bytes: &mut [u8]) {}

    /// Work and memory.
    fn cost(&self) -> Cost;

    /// The name of the group of cases this one is run with under `cargo test`, below the op.
    fn group(&self) -> &'static str;

    /// A word for the kind of shape: which of a backend's paths it usually takes.
    fn shape_class(&self) -> &'static str;

    /// False where the op's contract does not bind foreign devices: there a failure is reported without gating.
    fn binds_foreign_devices(&self) -> bool;

    /// The precision model that applies on a device, where values are approximate.
    fn model(&self, device: &Capabilities) -> Option<Model>;

    /// Computes the right values for the given inputs.
    fn oracle(&self, seed: u64, inputs: &Inputs<'_>) -> Box<dyn Oracle>;

    /// What a person wants to see of the case beyond its tensors: one line each.
    fn describe(&self, seed: u64, inputs: &Inputs<'_>) -> Vec<String>;
}

/// What a case type unfolds to: the parts of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Tensors; steps name them by position.
    pub tensors: Vec<Tensor>,
    /// Host memory, for steps that move bytes.
    pub buffers: Vec<Buffer>,
    /// Operations in execution order.
    pub steps: Vec<Step>,
    /// As [`Plan::fresh_routing`](crate::plan::Plan::fresh_routing).
    pub fresh_routing: bool,
}

/// Reads the params and recipe sections of an id; the error is one line.
pub type Parse = fn(&str, &str) -> Result<Arc<dyn CaseType>, String>;

/// How the crate reaches an op.
pub struct Op {
    /// Name in ids.
    pub name: &'static str,
    /// Group names of the cases that devices of our own can be judged on, in a fixed order: `cargo test` has trials of
    /// them.
    pub groups: &'static [&'static str],
    /// Reads params and recipe.
    pub parse: Parse,
    /// Draws a random case within a budget of multiply-adds (or compare-exchanges).
    pub draw: fn(&mut Draw) -> Arc<dyn CaseType>,
    /// Ids (without the version-seed section) of the cases that every profile starts with, each with the reason it is there.
    pub named: &'static [(&'static str, &'static str)],
}
