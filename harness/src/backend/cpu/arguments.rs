//! What the arguments of stages are made of: tensors, sizes, tiles, and the numbers that all stages agree on.

use conform_cases::formats::read_i32;
use conform_cases::plan::Tensor;

/// Rows of the weights that one tile covers.
pub const TILE_ROWS: usize = 64;
/// Sorted slots that one tile covers.
pub const TILE_SLOTS: usize = 32;
/// Columns (k values) that one step of a tile covers.
pub const TILE_K: usize = 16;
/// Stands in a sorted slot that no real slot took.
pub const PADDING: u32 = u32::MAX;

/// Sizes of one expert matmul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Values in a row of weights or activations.
    pub k: usize,
    /// Rows of an expert.
    pub m: usize,
    /// Experts, from the shape of the weights: the ids' row stride says nothing about it.
    pub experts: usize,
    /// Slots of a token.
    pub used: usize,
    /// Activation rows of a token.
    pub b: usize,
    /// Tokens.
    pub n: usize,
}

impl Sizes {
    /// Slots of all tokens.
    pub fn slots(&self) -> usize {
        self.used * self.n
    }

    /// The most tiles any routing can need: a tile is full, or its expert's last. No tile is empty.
    pub fn max_tiles(&self) -> usize {
        (self.slots() / TILE_SLOTS + self.experts).min(self.slots())
    }

    /// Panels of [`TILE_ROWS`] rows that cover an expert; the last one may reach beyond it.
    pub fn panels(&self) -> usize {
        self.m.div_ceil(TILE_ROWS)
    }
}

/// A tensor's bytes: its whole allocation, and the box in it that is meant.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Shape, type and place of the box.
    pub tensor: &'a Tensor,
    /// The allocation.
    pub bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// The bytes of one row.
    pub fn row(&self, at: [usize; 3]) -> &'a [u8] {
        &self.bytes[self.tensor.row_range(at)]
    }

    /// The bytes of a row counted over all outer dimensions.
    pub fn nth_row(&self, row: usize) -> &'a [u8] {
        let [_, d1, d2, _] = self.tensor.shape;
        self.row([row % d1, row / d1 % d2, row / (d1 * d2)])
    }
}

/// The expert ids of one matmul, `[used, n]`.
#[derive(Clone, Copy, Debug)]
pub struct Ids<'a> {
    /// The ids' bytes.
    pub view: View<'a>,
    /// The matmul's sizes.
    pub sizes: Sizes,
}

impl Ids<'_> {
    /// The expert of slot `token * used + i`, or `None` where the id names no expert.
    pub fn expert(&self, slot: usize) -> Option<usize> {
        let (token, i) = (slot / self.sizes.used, slot % self.sizes.used);
        let id = read_i32(self.view.row([token, 0, 0])).nth(i)?;
        usize::try_from(id).ok().filter(|expert| *expert < self.sizes.experts)
    }

    /// Every slot that has an expert, with the expert.
    pub fn routed(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..self.sizes.slots()).filter_map(|slot| Some((slot, self.expert(slot)?)))
    }
}

/// Used tiles: which expert each belongs to, and its sorted slots.
#[derive(Clone, Copy, Debug)]
pub struct Tiles<'a> {
    /// The expert of each tile.
    pub experts: &'a [u32],
    /// [`TILE_SLOTS`] slots for each tile.
    pub slots: &'a [u32],
}

/// Converted mxfp4 weights: rows are neighbours, so that neighbouring lanes read neighbouring words.
#[derive(Clone, Copy, Debug)]
pub struct Interleaved<'a> {
    /// `[expert][block][row]`: scale bytes.
    pub scales: &'a [u8],
    /// `[expert][block][word 0..4][row]`: eight codes a word, the first one lowest.
    pub codes: &'a [u32],
}

/// Weights as a matmul reads them.
#[derive(Clone, Copy, Debug)]
pub enum Weights<'a> {
    /// mxfp4 in the converted layout.
    Interleaved(Interleaved<'a>),
    /// Any other type, where it was written.
    Rows(View<'a>),
}
