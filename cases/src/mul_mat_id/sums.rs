//! The sums of every output: y = Σ w·x in f64, S = Σ|w||x| and R² = Σ(w·x)².
//!
//! They depend on what a device makes of the activations and on nothing else of
//! it, so one pass over the weights serves every device that multiplies the same.

use ndarray::Array2;
use rayon::prelude::*;

use super::exact::ACTIVATION_BLOCK;
use super::products::{FEW_ROWS, Magnitudes, dot};
use super::quantise::{self, Block, Emulated, Envelope};
use super::rows::RowSums;
use super::tiles::{Tile, Walk};
use crate::model::{Quantiser, Rounding};

/// Slots of one tile: more do not make its products faster.
const TILE_SLOTS: usize = 256;

/// y = Σ w·x, S = Σ|w||x| and R² = Σ(w·x)² of one output element.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub(super) struct Element {
    pub(super) y: f64,
    pub(super) s: f64,
    pub(super) r2: f64,
}

/// Rows of activations as a device multiplies them.
pub(super) struct Operands {
    /// `[rows][k]`.
    values: Array2<f64>,
    magnitudes: Magnitudes,
    codes: Option<Codes>,
    /// Some row has a unit, so that there may be exact sums.
    may_be_exact: bool,
}

/// What is known of rows whose codes were computed here, beside the values.
struct Codes {
    /// The stored sum of a block less the sum of its values, `[rows][blocks]`; nothing where none is stored.
    stored: Option<Array2<f64>>,
    /// Values so near to a tie that the device's own rounding decides, by row: column and step.
    ties: Vec<Vec<(usize, f64)>>,
    /// By row: the quantiser may overflow, and nothing is lost at all.
    overflows: Vec<bool>,
    exact: Vec<bool>,
}

impl Operands {
    /// Activations `[rows][k]` as they are, and the sums of their rows.
    pub(super) fn plain(x: &[f32], k: usize, sums: &[RowSums]) -> Self {
        let values = matrix(k, x.iter().map(|v| f64::from(*v)).collect());
        let magnitudes = Magnitudes::new(values.view(), sums.iter().map(|row| row.max_abs));
        Operands { values, magnitudes, codes: None, may_be_exact: may_be_exact(sums) }
    }

    /// Activations as a quantiser leaves them whose way of rounding is known.
    pub(super) fn emulated(quantiser: &Quantiser, rounding: Rounding, x: &[f32], k: usize, sums: &[RowSums]) -> Self {
        let rows: Vec<Emulated> = x.par_chunks(k).map(|row| quantise::emulate(quantiser, rounding, row)).collect();
        let blocks: Vec<Vec<Block>> = x.par_chunks(k).map(|row| quantise::blocks(quantiser, row)).collect();
        let values = matrix(k, rows.iter().flat_map(|row| row.values.iter().copied()).collect());
        let largest = rows.iter().map(|row| row.values.iter().fold(0.0, |m: f64, v| m.max(v.abs())));
        let stored = rows.iter().flat_map(|row| {
            let sums = row.values.chunks(ACTIVATION_BLOCK).map(|block| block.iter().sum::<f64>());
            row.sums.iter().zip(sums).map(|(stored, sum)| stored - sum)
        });
        let codes = Codes {
            stored: quantiser.f16_sums.then(|| matrix(k.div_ceil(ACTIVATION_BLOCK), stored.collect())),
            ties: rows.iter().map(|row| row.ties.clone()).collect(),
            overflows: blocks.iter().map(|row| row.iter().any(Block::overflows)).collect(),
            exact: blocks.iter().map(|row| row.iter().all(Block::is_exact)).collect(),
        };
        let magnitudes = Magnitudes::new(values.view(), largest);
        Operands { magnitudes, values, codes: Some(codes), may_be_exact: may_be_exact(sums) }
    }

    /// What is left of the quantiser's envelope where its codes are known, without the steps of undecided codes.
    fn envelope(&self, x_row: usize) -> Option<Envelope> {
        let codes = self.codes.as_ref()?;
        let (overflows, is_exact) = (codes.overflows[x_row], codes.exact[x_row]);
        Some(Envelope { overflows, is_exact, ..Envelope::default() })
    }
}

fn may_be_exact(sums: &[RowSums]) -> bool {
    sums.iter().any(|row| row.unit > 0.0)
}

fn matrix(columns: usize, values: Vec<f64>) -> Array2<f64> {
    let rows = values.len() / columns;
    // The values fill the rows: every caller has them row by row.
    Array2::from_shape_vec((rows, columns), values).unwrap_or_default()
}

/// The sums of every output.
pub(super) struct Sums {
    operands: Operands,
    /// `[slots][m]`.
    elements: Vec<Element>,
    /// S⁺ and R⁺²; empty where they are S and R².
    plus: Vec<(f64, f64)>,
    /// Σ d·(|p| + |o|) over undecided codes; empty where there are none.
    ties: Vec<f64>,
    /// `[experts][m]`; `None` for experts without a slot.
    weight_rows: Vec<Option<RowSums>>,
}

/// The sums of the outputs of one slot, by row.
pub(super) struct SlotSums<'a> {
    pub(super) elements: &'a [Element],
    /// S⁺ and R⁺², where they are not S and R².
    plus: Option<&'a [(f64, f64)]>,
    ties: Option<&'a [f64]>,
    /// The sums of the expert's rows.
    pub(super) weight_rows: &'a [Option<RowSums>],
    /// What a quantiser adds whose codes are known, but for ties.
    envelope: Option<Envelope>,
}

impl SlotSums<'_> {
    /// S⁺ and R⁺² of an output.
    #[inline]
    pub(super) fn plus(&self, row: usize) -> (f64, f64) {
        self.plus.map_or((self.elements[row].s, self.elements[row].r2), |plus| plus[row])
    }

    /// What a quantiser adds to an output whose codes are known.
    #[inline]
    pub(super) fn envelope(&self, row: usize) -> Option<Envelope> {
        self.envelope.map(|envelope| Envelope { certain: self.ties.map_or(0.0, |ties| ties[row]), ..envelope })
    }
}

/// What one tile adds to them.
struct Part<'a> {
    tile: Tile<'a>,
    weight_rows: Vec<RowSums>,
    /// Each `[slots][rows]`.
    y: Array2<f64>,
    s: Array2<f64>,
    r2: Array2<f64>,
    plus: Option<(Array2<f64>, Array2<f64>)>,
    ties: Option<Array2<f64>>,
}

impl Sums {
    /// Multiplies all weights in use.
    pub(super) fn new(walk: &Walk<'_>, operands: Operands) -> Self {
        let (case, m) = (walk.case, walk.case.m);
        let len = case.slots() * m;
        let filled = |wanted: bool| if wanted { len } else { 0 };
        let has_ties = operands.codes.as_ref().is_some_and(|codes| codes.ties.iter().any(|row| !row.is_empty()));
        let mut sums = Sums {
            elements: vec![Element::default(); len],
            plus: vec![(0.0, 0.0); filled(case.w.has_offsets())],
            ties: vec![0.0; filled(has_ties)],
            weight_rows: vec![None; case.experts * m],
            operands,
        };
        let parts: Vec<Part<'_>> = walk.tiles(TILE_SLOTS).map(|tile| sums.operands.multiply(walk, tile)).collect();
        parts.into_iter().for_each(|part| sums.place(m, part));
        sums
    }

    fn place(&mut self, m: usize, part: Part<'_>) {
        let rows = part.tile.rows;
        if part.tile.column.is_first {
            let places = &mut self.weight_rows[part.tile.column.expert * m..][rows.clone()];
            places.iter_mut().zip(part.weight_rows).for_each(|(place, sums)| *place = Some(sums));
        }
        for (i, slot) in part.tile.column.slots.iter().enumerate() {
            let range = slot * m + rows.start..slot * m + rows.end;
            let values = part.y.row(i).into_iter().zip(part.s.row(i)).zip(part.r2.row(i));
            let places = self.elements[range.clone()].iter_mut();
            places.zip(values).for_each(|(place, ((y, s), r2))| *place = Element { y: *y, s: *s, r2: *r2 });
            if let Some((s, r2)) = &part.plus {
                let places = self.plus[range.clone()].iter_mut();
                places.zip(s.row(i).into_iter().zip(r2.row(i))).for_each(|(place, (s, r2))| *place = (*s, *r2));
            }
            if let Some(ties) = &part.ties {
                self.ties[range].iter_mut().zip(ties.row(i)).for_each(|(place, ties)| *place = *ties);
            }
        }
    }

    /// An output.
    pub(super) fn element(&self, i: usize) -> Element {
        self.elements[i]
    }

    /// The outputs of a slot that uses an expert and a row of activations.
    pub(super) fn slot(&self, slot: usize, expert: usize, x_row: usize, m: usize) -> SlotSums<'_> {
        SlotSums {
            elements: &self.elements[slot * m..][..m],
            plus: self.plus.get(slot * m..(slot + 1) * m),
            ties: self.ties.get(slot * m..(slot + 1) * m),
            weight_rows: &self.weight_rows[expert * m..][..m],
            envelope: self.operands.envelope(x_row),
        }
    }

    /// Whether some weight in use is infinite or NaN.
    pub(super) fn has_special_weights(&self) -> bool {
        self.weight_rows.iter().flatten().any(|row| !row.is_finite)
    }
}

impl Operands {
    fn multiply<'a>(&self, walk: &Walk<'_>, tile: Tile<'a>) -> Part<'a> {
        let weights = walk.decode(&tile);
        let x_rows = walk.x_rows(&tile.column);
        let select = |of: &Array2<f64>| of.select(ndarray::Axis(0), &x_rows);
        let weight_rows = weights.sums(self.may_be_exact);
        let (values, parts) = (select(&self.values), weights.plus());
        let ([mut y, s, r2], plus) = if x_rows.len() <= FEW_ROWS {
            let plus = parts.as_ref().map(|plus| dots(&values, plus)).map(|[_, s, r2]| (s, r2));
            (dots(&values, &weights.w), plus)
        } else {
            let x = self.magnitudes.select(&x_rows);
            let sums = |of: &Array2<f64>, largest: &[f64]| x.sums(&Magnitudes::new(of.view(), largest.iter().copied()));
            let largest: Vec<f64> = weight_rows.iter().map(|row| row.max_abs).collect();
            let (s, r2) = sums(&weights.w, &largest);
            let of_plus = |plus: &Array2<f64>| {
                let rows = plus.rows().into_iter();
                sums(plus, &rows.map(|row| row.fold(0.0, |m: f64, v| m.max(*v))).collect::<Vec<_>>())
            };
            ([values.dot(&weights.w.t()), s, r2], parts.as_ref().map(of_plus))
        };
        // Offset parts are multiplied with the sum as it is stored, not with the sum of the codes.
        if let Some((stored, offsets)) =
            self.codes.as_ref().and_then(|c| c.stored.as_ref()).zip(weights.block_offsets())
        {
            y += &select(stored).dot(&offsets.t());
        }
        let ties = self.codes.as_ref().filter(|codes| x_rows.iter().any(|row| !codes.ties[*row].is_empty()));
        let ties = ties.map(|codes| {
            let plus = parts.as_ref().unwrap_or(&weights.w);
            Array2::from_shape_fn(y.dim(), |(slot, row)| {
                codes.ties[x_rows[slot]].iter().map(|(column, step)| step * plus[[row, *column]].abs()).sum()
            })
        });
        Part { tile, weight_rows, y, s, r2, plus, ties }
    }
}

/// The sums of every row of `x` and every row of weights, each `[x rows][weight rows]`.
fn dots(x: &Array2<f64>, w: &Array2<f64>) -> [Array2<f64>; 3] {
    let mut sums = [(); 3].map(|()| Array2::zeros((x.nrows(), w.nrows())));
    for (r, w) in w.rows().into_iter().enumerate() {
        for (slot, x) in x.rows().into_iter().enumerate() {
            let of_rows = w.as_slice().zip(x.as_slice()).map_or([f64::NAN; 3], |(w, x)| dot(w, x));
            sums.iter_mut().zip(of_rows).for_each(|(sums, sum)| sums[[slot, r]] = sum);
        }
    }
    sums
}
