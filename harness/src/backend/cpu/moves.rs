//! Bytes that are moved: between slices, where they lie.

use conform_cases::plan::Part;

use super::super::moves::{check, transfers};
use super::{DeviceError, Loaded, Stages};

impl Loaded {
    pub(super) fn check(&self, call: &str, parts: &[Part], other: usize) -> Result<(), DeviceError> {
        let bytes = |tensor: usize| self.buffers.get(tensor).map(|b| b.bytes.len());
        parts.iter().try_for_each(|part| check(call, part, bytes, other))
    }

    /// Writes pieces of host memory. The parts were checked, as for all that follows.
    pub(super) fn upload(&mut self, from: &[u8], parts: &[Part]) {
        for t in transfers(parts) {
            let buffer = &mut self.buffers[t.tensor];
            for (here, there) in t.pieces() {
                buffer.write(here..here + t.size, &from[there..there + t.size]);
            }
        }
    }

    /// Reads pieces into host memory.
    pub(super) fn fetch(&mut self, to: &mut [u8], parts: &[Part], stages: &Stages) -> Result<(), DeviceError> {
        for t in transfers(parts) {
            let readable = self.buffers[t.tensor].readable(&self.plan.tensors[t.tensor], stages)?;
            for (here, there) in t.pieces() {
                to[there..there + t.size].copy_from_slice(&readable[here..here + t.size]);
            }
        }
        Ok(())
    }

    /// Copies pieces from one tensor to others, or inside of it.
    pub(super) fn copy(&mut self, from: usize, parts: &[Part], stages: &Stages) -> Result<(), DeviceError> {
        let tensor = &self.plan.tensors[from];
        for t in transfers(parts) {
            let Ok([source, target]) = self.buffers.get_disjoint_mut([from, t.tensor]) else {
                let buffer = &mut self.buffers[from];
                for (here, there) in t.pieces() {
                    buffer.readable(tensor, stages)?;
                    buffer.copy_within(there..there + t.size, here);
                }
                continue;
            };
            let readable = source.readable(tensor, stages)?;
            for (here, there) in t.pieces() {
                target.write(here..here + t.size, &readable[there..there + t.size]);
            }
        }
        Ok(())
    }
}
