//! Bytes that are moved: between slices, where they lie.

use conform_cases::plan::Part;

use super::super::moves::{check, columns, transfers};
use super::{DeviceError, Loaded, Stages};

impl Loaded {
    pub(super) fn check(&self, call: &str, parts: &[Part], other: usize) -> Result<(), DeviceError> {
        let bytes = |tensor: usize| self.buffers.get(tensor).map(|b| b.bytes.len());
        parts.iter().try_for_each(|part| check(call, part, bytes, other))
    }

    /// Writes pieces of host memory. The parts were checked, as for all that follows.
    pub(super) fn upload(&mut self, from: &[u8], parts: &[Part]) {
        let transfers: Vec<Part> = transfers(parts).collect();
        for group in columns(&transfers) {
            let buffer = &mut self.buffers[group[0].tensor];
            for (size, here, there) in by_row(group) {
                buffer.write(here..here + size, &from[there..there + size]);
            }
        }
    }

    /// Reads pieces into host memory.
    pub(super) fn fetch(&mut self, to: &mut [u8], parts: &[Part], stages: &Stages) -> Result<(), DeviceError> {
        let transfers: Vec<Part> = transfers(parts).collect();
        for group in columns(&transfers) {
            let tensor = group[0].tensor;
            let readable = self.buffers[tensor].readable(&self.plan.tensors[tensor], stages)?;
            for (size, here, there) in by_row(group) {
                to[there..there + size].copy_from_slice(&readable[here..here + size]);
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

/// Size and offsets of each piece of transfers that lie side by side.
fn by_row(group: &[Part]) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
    let rows = group.first().map_or(0, |t| t.count);
    let piece = |row: usize, t: &Part| (t.size, t.here.at + row * t.here.stride, t.there.at + row * t.there.stride);
    (0..rows).flat_map(move |row| group.iter().map(move |t| piece(row, t)))
}
