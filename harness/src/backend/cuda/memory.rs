//! The memory of one tensor.

use super::runtime::Buffer;
use super::weights::Converted;

/// The memory of one tensor.
pub(super) struct Memory {
    /// The tensor's allocation, byte for byte.
    pub(super) raw: Buffer,
    /// MXFP4 weights: the layout the kernels read.
    pub(super) converted: Option<Converted>,
}
