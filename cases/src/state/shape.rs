//! What a memory consists of.

use super::tensor::CacheTensor;
use crate::formats::ElemType;

/// An attention KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvShape {
    /// Streams; sequence `s` lives in stream `s mod streams`.
    pub streams: usize,
    /// Cells of a stream.
    pub cells: usize,
    /// Sequences there may be: 0 to this, exclusive.
    pub sequences: usize,
    /// Layers.
    pub layers: usize,
    /// Elements of a K row.
    pub k_embd: usize,
    /// Elements of a V row.
    pub v_embd: usize,
    /// Type of K.
    pub k_type: ElemType,
    /// Type of V.
    pub v_type: ElemType,
    /// V is stored transposed.
    pub v_trans: bool,
    /// Positions have an x and a y beside them.
    pub has_xy: bool,
    /// Positions that a sliding window covers; older cells are given up. None is 0.
    pub window: usize,
}

/// A recurrent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecurrentShape {
    /// Cells.
    pub cells: usize,
    /// Sequences there may be.
    pub sequences: usize,
    /// Layers.
    pub layers: usize,
    /// Layers of the model that are attention's: a blob counts them, and has no rows of theirs.
    pub others: usize,
    /// Elements of an R row.
    pub r_embd: usize,
    /// Elements of an S row.
    pub s_embd: usize,
    /// Type of R.
    pub r_type: ElemType,
    /// Type of S.
    pub s_type: ElemType,
    /// S is stored transposed.
    pub s_trans: bool,
}

/// A memory: attention, recurrent, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The attention part.
    pub kv: Option<KvShape>,
    /// The recurrent part.
    pub recurrent: Option<RecurrentShape>,
}

impl KvShape {
    /// The stream that a sequence lives in.
    pub fn stream(&self, sequence: i32) -> usize {
        usize::try_from(sequence).unwrap_or(0) % self.streams
    }

    /// K of every layer, then V of every layer; the first has this position in the plan.
    pub fn tensors(&self, first: usize) -> Vec<CacheTensor> {
        let k = (0..self.layers).map(|l| (format!("layer {l} K"), self.k_type, self.k_embd, false));
        let v = (0..self.layers).map(|l| (format!("layer {l} V"), self.v_type, self.v_embd, self.v_trans));
        let tensor = |(i, (name, ty, embd, transposed))| CacheTensor {
            index: first + i,
            name,
            ty,
            embd,
            transposed,
            cells: self.cells,
            streams: self.streams,
        };
        k.chain(v).enumerate().map(tensor).collect()
    }
}

impl RecurrentShape {
    /// R of every layer, then S of every layer; the first has this position in the plan.
    pub fn tensors(&self, first: usize) -> Vec<CacheTensor> {
        let r = (0..self.layers).map(|l| (format!("layer {l} R"), self.r_type, self.r_embd, false));
        let s = (0..self.layers).map(|l| (format!("layer {l} S"), self.s_type, self.s_embd, self.s_trans));
        let tensor = |(i, (name, ty, embd, transposed))| CacheTensor {
            index: first + i,
            name,
            ty,
            embd,
            transposed,
            cells: self.cells,
            streams: 1,
        };
        r.chain(s).enumerate().map(tensor).collect()
    }
}

impl Shape {
    /// Sequences there may be.
    pub fn sequences(&self) -> usize {
        let kv = self.kv.map(|s| s.sequences);
        kv.or(self.recurrent.map(|s| s.sequences)).unwrap_or(0)
    }

    /// Every tensor: those of the attention part first.
    pub fn tensors(&self) -> Vec<CacheTensor> {
        let kv = self.kv.map(|s| s.tensors(0)).unwrap_or_default();
        let recurrent = self.recurrent.map(|s| s.tensors(kv.len())).unwrap_or_default();
        [kv, recurrent].concat()
    }
}
