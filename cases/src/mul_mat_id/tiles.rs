//! The output cut into tiles: some rows of one expert, and slots that use it.
//!
//! Every sum over weights walks over tiles, in parallel: the weights of a tile
//! are decoded once for all of its slots, and stay in a core's cache.

use std::collections::BTreeMap;
use std::ops::Range;

use ndarray::{Array2, ArrayView1, ArrayView2, Axis, Slice};
use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use super::exact::ACTIVATION_BLOCK;
use super::quantise::WeightBlock;
use super::rows::{RowSums, block_scales};
use super::{MulMatId, WEIGHTS};
use crate::formats::ElemType;
use crate::inputs::{Inputs, Row};
use crate::model::Quantiser;

/// Decoded weights of a tile: with what is made of them they stay in a core's cache.
const TILE_WEIGHTS: usize = 1 << 16;

/// What is needed to walk over a case's weights.
#[derive(Clone, Copy)]
pub(super) struct Walk<'a> {
    pub(super) case: &'a MulMatId,
    pub(super) inputs: Inputs<'a>,
    /// Experts in use with their slots.
    pub(super) experts: &'a BTreeMap<usize, Vec<usize>>,
}

/// All rows of an expert and some of its slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column<'a> {
    pub(super) expert: usize,
    pub(super) slots: &'a [usize],
    /// No other column has this expert before this one.
    pub(super) is_first: bool,
}

/// Some rows of a column.
#[derive(Clone, Debug)]
pub(super) struct Tile<'a> {
    pub(super) column: Column<'a>,
    pub(super) rows: Range<usize>,
}

impl<'a> Walk<'a> {
    /// All tiles, with no more than so many slots.
    pub(super) fn tiles(&self, most_slots: usize) -> impl ParallelIterator<Item = Tile<'a>> + use<'a> {
        let tiles: Vec<_> = self.columns(most_slots).iter().flat_map(|column| self.tiles_of(column)).collect();
        tiles.into_par_iter()
    }

    /// All columns of tiles, with no more than so many slots.
    pub(super) fn columns(&self, most_slots: usize) -> Vec<Column<'a>> {
        let of_expert = |(expert, slots): (&usize, &'a Vec<usize>)| {
            let column = |(part, slots)| Column { expert: *expert, slots, is_first: part == 0 };
            slots.chunks(most_slots).enumerate().map(column).collect::<Vec<_>>()
        };
        self.experts.iter().flat_map(|(expert, slots)| of_expert((expert, slots))).collect()
    }

    /// The tiles of a column, one below the other.
    pub(super) fn tiles_of(&self, column: &Column<'a>) -> impl Iterator<Item = Tile<'a>> + use<'a> {
        let (m, rows, column) = (self.case.m, (TILE_WEIGHTS / self.case.k).clamp(1, self.case.m), *column);
        (0..m).step_by(rows).map(move |from| Tile { rows: from..m.min(from + rows), column })
    }

    /// The weights of a tile.
    pub(super) fn decode(&self, tile: &Tile<'_>) -> Weights {
        self.decode_parts(tile, false)
    }

    /// The same, with the centres of codes apart where asked.
    pub(super) fn decode_parts(&self, tile: &Tile<'_>, centres: bool) -> Weights {
        let stored: Vec<Row<'_>> =
            tile.rows.clone().map(|row| self.inputs.row(WEIGHTS, [row, tile.column.expert, 0])).collect();
        Weights::decode(self.case.w, self.case.k, &stored, centres)
    }

    /// The activation rows of a column's slots.
    pub(super) fn x_rows(&self, column: &Column<'_>) -> Vec<usize> {
        column.slots.iter().map(|slot| self.case.x_row(*slot)).collect()
    }
}

/// Rows of decoded weights, with their offset parts where the type has them.
pub(super) struct Weights {
    /// w, `[rows][k]`.
    pub(super) w: Array2<f64>,
    /// o; `None` where it is zero, or is not known.
    pub(super) o: Option<Array2<f64>>,
    /// Sum of the magnitudes of each row's block scales, where a device may scale sums.
    scales: Vec<f64>,
    /// The values were rounded when they were decoded.
    rounded: bool,
    /// For types whose part o is not known: the most that |p| + |o| is of |w|.
    share: Option<f64>,
    /// By row and block of the type: its scales are powers of two.
    plain_scales: Vec<Vec<bool>>,
    block_len: usize,
}

impl Weights {
    fn decode(ty: ElemType, k: usize, stored: &[Row<'_>], centres: bool) -> Self {
        let decoded = |decode: &dyn Fn(&Row<'_>, &mut [f64])| by_row(stored.len(), k, |i, row| decode(&stored[i], row));
        let w = decoded(&|stored, row| stored.decode(row));
        let share = ty.largest_parts();
        let has_known_offsets = (ty.has_offsets() || centres) && share.is_none();
        let o = has_known_offsets.then(|| decoded(&|stored, row| ty.offsets(stored.stored, centres, row)));
        let scales = stored.iter().map(|row| block_scales(ty, row.stored)).collect();
        let plain_scales = stored.iter().map(|row| ty.plain_scales(row.stored)).collect();
        let (rounded, block_len) = (ty.rounds_when_decoded(), ty.block_len());
        Weights { w, o, scales, rounded, share, plain_scales, block_len }
    }

    /// |p| + |o|; `None` where that is |w|.
    pub(super) fn plus(&self) -> Option<Array2<f64>> {
        match (&self.o, self.share) {
            (Some(o), _) => Some(by_row(self.w.nrows(), self.w.ncols(), |row, plus| {
                if let (Some(w), Some(o)) = (self.w.row(row).as_slice(), o.row(row).as_slice()) {
                    Arch::new().dispatch(Parts { w, o, plus });
                } else {
                    debug_assert!(false, "decoded rows lie in one piece");
                }
            })),
            (None, Some(share)) => Some(self.w.mapv(|w| w.abs() * share)),
            (None, None) => None,
        }
    }

    /// Sums of the rows; with units where sums may be exact. Where there are offset parts their bits count as well: a
    /// device may multiply them apart.
    pub(super) fn sums(&self, may_be_exact: bool) -> Vec<RowSums> {
        // A sum of rounded weights is not the device's, which rounds elsewhere: nothing is exact.
        let may_be_exact = may_be_exact && !self.rounded;
        let of = |row: ArrayView1<'_, f64>| {
            let sums = if may_be_exact { RowSums::new } else { RowSums::inexact };
            row.as_slice().map_or_else(|| sums(&row.to_vec()), sums)
        };
        let rows = |of_rows: &Array2<f64>| of_rows.rows().into_iter().map(of).collect::<Vec<_>>();
        let mut sums = rows(&self.w);
        if let Some(o) = self.o.as_ref().filter(|_| may_be_exact) {
            // A row without a unit gets none from its parts.
            let rows = sums.iter_mut().zip(self.w.rows().into_iter().zip(o.rows()));
            for (sums, (w, o)) in rows.filter(|(sums, _)| sums.unit > 0.0) {
                sums.unit = sums.unit.min(of((&w - &o).view()).unit).min(of(o).unit);
            }
        }
        sums.iter_mut().zip(&self.scales).for_each(|(sums, scales)| sums.scales = *scales);
        sums
    }

    /// What a quantiser's envelope needs of a row, by activation block: of p where it stores sums of activations.
    pub(super) fn blocks(&self, quantiser: &Quantiser, row: usize) -> Vec<WeightBlock> {
        let (w, o) = (self.w.row(row), self.o.as_ref().map(|o| o.row(row)));
        let o = o.as_ref().and_then(|o| o.as_slice());
        let is_apart = quantiser.parts.sums_of_values;
        let mut blocks = WeightBlock::of_row(w.as_slice().unwrap_or_default(), o, is_apart);
        for (i, block) in blocks.iter_mut().enumerate() {
            if self.share.is_some() && is_apart {
                // p is 8/7 of w or less, or zero where w is the offset part alone.
                block.offset = block.least;
                (block.sum, block.largest) = (block.sum * 8.0 / 7.0, block.largest * 8.0 / 7.0);
                block.squares *= 64.0 / 49.0;
            }
            let of_type = i * ACTIVATION_BLOCK / self.block_len;
            block.has_plain_scales = self.plain_scales[row].get(of_type).is_some_and(|plain| *plain);
        }
        blocks
    }

    /// p, where a quantiser's errors meet it and not w, and where it is known.
    pub(super) fn codes(&self, quantiser: &Quantiser) -> Option<Array2<f64>> {
        self.o.as_ref().filter(|_| quantiser.parts.sums_of_values).map(|o| &self.w - o)
    }

    /// The offset parts by activation block, `[rows][blocks]`, for types that have one in a block.
    pub(super) fn block_offsets(&self) -> Option<ArrayView2<'_, f64>> {
        self.o.as_ref().map(|o| o.slice_axis(Axis(1), Slice::new(0, None, ACTIVATION_BLOCK as isize)))
    }
}

/// A matrix written row by row, each while the zeros that it begins with are in a core's nearest cache.
fn by_row(rows: usize, columns: usize, write: impl Fn(usize, &mut [f64])) -> Array2<f64> {
    let mut values = Vec::with_capacity(rows * columns);
    for row in 0..rows {
        values.resize((row + 1) * columns, 0.0);
        write(row, &mut values[row * columns..]);
    }
    // The values fill the rows.
    Array2::from_shape_vec((rows, columns), values).unwrap_or_default()
}

/// Writes |w − o| + |o|.
struct Parts<'a> {
    w: &'a [f64],
    o: &'a [f64],
    plus: &'a mut [f64],
}

impl NullaryFnOnce for Parts<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for ((plus, w), o) in self.plus.iter_mut().zip(self.w).zip(self.o) {
            *plus = (w - o).abs() + o.abs();
        }
    }
}
