//! MXFP4 weights in the layout that the kernels read.
//!
//! The raw bytes of the allocation are kept for its margins and for writes in
//! pieces. Between the first run, or the first read, and the next write the
//! converted layout alone is the truth about the view: its raw bytes are
//! cleared before they are restored, so a wrong conversion shows.

use conform_cases::formats::ElemType;
use conform_cases::plan::Tensor;

use super::runtime::{Allocator, Arg, Buffer, Runtime, view};
use crate::backend::{DeviceError, LoadError};

const BLOCK_LEN: usize = 32;
const WORDS_PER_BLOCK: usize = 4;

/// The converted form of one weights tensor.
pub(super) struct Converted {
    pub(super) scale: Buffer,
    pub(super) code: Buffer,
    /// True if this form is the truth, false if the raw bytes are.
    current: bool,
}

impl Converted {
    /// Memory for the converted form.
    pub(super) fn new(memory: &mut Allocator<'_>, t: &Tensor) -> Result<Self, LoadError> {
        debug_assert_eq!(t.ty, ElemType::Mxfp4);
        let blocks = t.elements() / BLOCK_LEN;
        memory.runtime.kernels.convert.countable_items(blocks as u64)?;
        Ok(Converted {
            scale: memory.buffer(&format!("scales of {}", t.name), blocks)?,
            code: memory.buffer(&format!("codes of {}", t.name), blocks * WORDS_PER_BLOCK * 4)?,
            current: false,
        })
    }

    /// Converts the raw bytes if they are newer.
    pub(super) fn update(&mut self, runtime: &Runtime, t: &Tensor, raw: &Buffer) -> Result<(), DeviceError> {
        if !self.current {
            runtime.launch_items(&runtime.kernels.convert, t.elements() / BLOCK_LEN, &self.arguments(t, raw))?;
            self.current = true;
        }
        Ok(())
    }

    /// Brings the raw bytes of the view back from the converted form.
    pub(super) fn restore(&mut self, runtime: &Runtime, t: &Tensor, raw: &Buffer) -> Result<(), DeviceError> {
        self.update(runtime, t, raw)?;
        let (rows, experts) = (t.shape[1], t.shape[2]);
        let clear = [
            Arg::Buffer(raw),
            view(t),
            Arg::U64(t.row_bytes() as u64),
            Arg::U32(rows as u32),
            Arg::U32(experts as u32),
        ];
        runtime.launch_items(&runtime.kernels.clear_view, rows * experts, &clear)?;
        runtime.launch_items(&runtime.kernels.restore, t.elements() / BLOCK_LEN, &self.arguments(t, raw))
    }

    /// Makes the raw bytes the truth before some of them are overwritten.
    pub(super) fn before_write(
        &mut self,
        runtime: &Runtime,
        t: &Tensor,
        raw: &Buffer,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        if self.current && bytes < t.parent_bytes() {
            self.restore(runtime, t, raw)?;
        }
        self.current = false;
        Ok(())
    }

    fn arguments<'a>(&'a self, t: &Tensor, raw: &'a Buffer) -> [Arg<'a>; 7] {
        [
            Arg::Buffer(raw),
            view(t),
            Arg::U32((t.shape[0] / BLOCK_LEN) as u32),
            Arg::U32(t.shape[1] as u32),
            Arg::U32(t.shape[2] as u32),
            Arg::Buffer(&self.scale),
            Arg::Buffer(&self.code),
        ]
    }
}
