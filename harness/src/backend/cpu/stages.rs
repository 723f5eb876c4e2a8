//! The table of stages.
//!
//! Each stage is a free function over plain slices. A device calls stages only
//! through its table, so that a mutant is the default table with one entry
//! swapped and everything else as it is.

use std::ops::Range;

use conform_cases::plan::{Order, Tensor};

use super::arguments::{Ids, Interleaved, Sizes, Tiles, View, Weights};
use super::{argsort, convert, gemm, gemv, reorder, route, top_k};

/// The functions a device runs. The default table is the correct one.
#[derive(Clone, Copy, Debug)]
pub struct Stages {
    /// Where an output lies in its allocation, which has guards: the range is its own part.
    pub place: Placing,
    /// Weights from blocks in rows to interleaved scales and code words.
    pub convert: fn(blocks: View<'_>, scales: &mut [u8], codes: &mut [u32]),
    /// Interleaved weights back into the blocks of a view; the last argument is the view's whole allocation.
    pub restore: fn(weights: Interleaved<'_>, tensor: &Tensor, allocation: &mut [u8]),
    /// Counts slots per expert.
    pub histogram: fn(ids: Ids<'_>, counters: &mut [u32]),
    /// Gives each expert its tiles: `tile_offset` has one more entry than there are experts. Clears the counters.
    pub scan: fn(counters: &mut [u32], tile_offset: &mut [u32]),
    /// Makes every slot of the used tiles padding.
    pub fill: fn(slots: &mut [u32]),
    /// Puts each slot into its expert's tiles.
    pub scatter: Scatter,
    /// Copies each sorted slot's activation row.
    pub reorder: fn(slots: &[u32], x: View<'_>, sizes: Sizes, rows: &mut [f32]),
    /// Multiplies tiles of weights with tiles of sorted activation rows.
    pub gemm: fn(tiles: Tiles<'_>, weights: Weights<'_>, rows: &[f32], sizes: Sizes, products: &mut [f32]),
    /// Takes the products of each sorted slot to its place in the output.
    pub store: fn(slots: &[u32], products: &[f32], sizes: Sizes, out: &mut [u8]),
    /// A single token's expert matmul, from interleaved weights to the output.
    pub gemv: fn(ids: Ids<'_>, x: View<'_>, weights: Interleaved<'_>, out: &mut [u8]),
    /// Sorts rows; `keys` holds a padded row for each worker.
    pub argsort: fn(x: View<'_>, order: Order, keys: &mut [u64], out: &mut [u8]),
    /// Writes the indices of the `k` largest of each row.
    pub top_k: fn(x: View<'_>, k: usize, out: &mut [u8]),
}

/// The type of [`Stages::place`].
pub type Placing = fn(allocation: &mut [u8], own: Range<usize>) -> &mut [u8];

/// The type of [`Stages::scatter`].
pub type Scatter =
    fn(ids: Ids<'_>, tile_offset: &[u32], counters: &mut [u32], slots: &mut [u32], tile_expert: &mut [u32]);

impl Default for Stages {
    fn default() -> Self {
        Stages {
            place: |allocation, own| &mut allocation[own],
            convert: convert::convert,
            restore: convert::restore,
            histogram: route::histogram,
            scan: route::scan,
            fill: route::fill,
            scatter: route::scatter,
            reorder: reorder::reorder,
            gemm: gemm::gemm,
            store: gemm::store,
            gemv: gemv::gemv,
            argsort: argsort::argsort,
            top_k: top_k::top_k,
        }
    }
}
