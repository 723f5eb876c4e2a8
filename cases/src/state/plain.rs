//! A device that is plain memory of the host, and does what steps that move bytes say.

use super::io::Transfers;
use super::tensor::CacheTensor;
use crate::inputs::Inputs;
use crate::plan::{Part, Plan, Role, Step};

/// Allocations of tensors, and the host's memory beside them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlainMemory {
    /// By position in the plan.
    pub tensors: Vec<Vec<u8>>,
    /// By position in the plan.
    pub buffers: Vec<Vec<u8>>,
}

impl PlainMemory {
    /// The tensors of a memory, with zeros.
    pub fn new(tensors: &[CacheTensor]) -> Self {
        let tensors = tensors.iter().map(|t| vec![0; t.streams * t.stream_bytes()]);
        PlainMemory { tensors: tensors.collect(), buffers: Vec::new() }
    }

    /// The tensors and buffers of a plan before a run: inputs as they are given, the rest filled with a word.
    pub fn of_plan(plan: &Plan, inputs: &Inputs<'_>, poison: u32) -> Self {
        let fill = |bytes: usize| (0..bytes).map(|i| poison.to_le_bytes()[i % 4]).collect::<Vec<u8>>();
        let tensors = plan.tensors.iter().enumerate().map(|(i, t)| match t.role {
            Role::Output | Role::View { .. } => fill(t.parent_bytes()),
            _ => inputs.tensor(i).1.to_vec(),
        });
        let buffers = plan.buffers.iter().enumerate();
        let buffers = buffers.map(|(i, b)| if b.is_given { inputs.buffer(i).to_vec() } else { fill(b.bytes) });
        PlainMemory { tensors: tensors.collect(), buffers: buffers.collect() }
    }

    /// Does a step; an error where it is none that moves bytes, or a piece lies outside of what it is a piece of.
    pub fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Copy { from, parts } => {
                // The pieces of a copy within a tensor don't overlap, so they can be read before any is written.
                let source = self.tensors.get(*from).ok_or_else(|| format!("no tensor {from}"))?.clone();
                self.upload(&source, parts)
            }
            Step::Upload { from, parts } => {
                let source = self.buffers.get(*from).ok_or_else(|| format!("no buffer {from}"))?.clone();
                self.upload(&source, parts)
            }
            Step::Fetch { to, parts } => {
                let mut target = std::mem::take(self.buffers.get_mut(*to).ok_or_else(|| format!("no buffer {to}"))?);
                let done = self.fetch(&mut target, parts);
                self.buffers[*to] = target;
                done
            }
            Step::Fill { tensor, byte } => {
                self.tensors.get_mut(*tensor).ok_or_else(|| format!("no tensor {tensor}"))?.fill(*byte);
                Ok(())
            }
            other => Err(format!("{other:?} moves no bytes")),
        }
    }

    /// Moves every piece with a function of the tensor's bytes and the blob's; an error where one lies outside.
    fn each<B>(
        &mut self,
        mut blob: B,
        parts: &[Part],
        mut piece: impl FnMut(&mut [u8], &mut B, usize),
        len: usize,
    ) -> Result<(), String> {
        for part in parts {
            let tensor = self.tensors.get_mut(part.tensor).ok_or_else(|| format!("no tensor {}", part.tensor))?;
            if !part.fits(tensor.len(), len) {
                return Err(format!("{part:?} does not lie in {} bytes and a blob of {len}", tensor.len()));
            }
            for (here, there) in part.pieces() {
                piece(&mut tensor[here..here + part.size], &mut blob, there);
            }
        }
        Ok(())
    }
}

impl Transfers for PlainMemory {
    fn fetch(&mut self, blob: &mut [u8], parts: &[Part]) -> Result<(), String> {
        let len = blob.len();
        let copy =
            |tensor: &mut [u8], blob: &mut &mut [u8], at: usize| blob[at..at + tensor.len()].copy_from_slice(tensor);
        self.each(blob, parts, copy, len)
    }

    fn upload(&mut self, blob: &[u8], parts: &[Part]) -> Result<(), String> {
        let copy =
            |tensor: &mut [u8], blob: &mut &[u8], at: usize| tensor.copy_from_slice(&blob[at..at + tensor.len()]);
        self.each(blob, parts, copy, blob.len())
    }
}
