//! Checks of the whole output: `scale`, `bias` and `noise`.
//!
//! Where activations are quantised one element's envelope is wide, but errors of
//! many elements average out: a factor of 1.002 on everything stays inside every
//! envelope and is far outside what independent errors can add up to. For
//! sign-symmetric random data, with ρ the errors, y the values and σ² the
//! variance of one error,
//!
//! ```text
//! slope = Σ ω ρ y / Σ ω y²      mean = Σ ω ρ / Σ ω      ω = 1/σ²
//! ```
//!
//! are linear in the errors. Outputs of one activation row share its errors, so
//! variances are summed over activations and stored weights, not over outputs.

use std::collections::BTreeSet;

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView1, Axis};
use rayon::prelude::*;

use super::exact::ACTIVATION_BLOCK;
use super::quantise::{self, Block};
use super::rows::RowSums;
use super::tiles::{Column, Tile, Walk};
use crate::judge::{Check, Failure};
use crate::model::{Activations, Conversion, Model, Quantiser, Scales};

/// Standard deviations beyond which `scale` and `bias` fail: healthy runs stay below 4.
const LIMIT: f64 = 7.0;

/// Columns from which roundings of different outputs are independent. A shorter row of a type with few bits is one of few,
/// up to its scale, and outputs of equal rows have equal errors.
pub(super) const SHORTEST: usize = 4;

/// Activation rows from which `noise` says something.
const ROWS_FOR_NOISE: usize = 16;

/// One finite output that was judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    /// The right value.
    pub(super) y: f64,
    /// Got minus right.
    pub(super) error: f64,
    /// Variance of the accumulation alone.
    pub(super) own_variance: f64,
    /// Variance of its error with all that it shares with others.
    pub(super) variance: f64,
    /// What of its error need not be random.
    pub(super) near_zero: f64,
}

/// Errors that outputs share.
pub(super) enum Shared<'a> {
    /// None: operands are used as they are.
    Nothing,
    /// Conversions of activations or weights.
    Converted {
        /// What becomes of activations.
        activations: Conversion,
        /// What becomes of weights.
        weights: Conversion,
        /// Subnormal f16 may become zero.
        flushes_f16: bool,
    },
    /// Steps of a quantiser, in blocks of 32.
    Quantised {
        /// Blocks of each activation row.
        blocks: &'a [Vec<Block>],
        /// The quantiser.
        quantiser: Quantiser,
    },
}

impl<'a> Shared<'a> {
    /// What outputs share under a model; `blocks` are those of its quantiser, unless its codes are known.
    pub(super) fn of(model: &Model, blocks: Option<&'a [Vec<Block>]>) -> Self {
        match (model.activations, blocks) {
            (Activations::Quantised(quantiser), Some(blocks)) => Shared::Quantised { blocks, quantiser },
            (Activations::Quantised(_), None) => Shared::Nothing,
            (Activations::Converted(Conversion::None), _) if model.weights == Conversion::None => Shared::Nothing,
            (Activations::Converted(activations), _) => {
                Shared::Converted { activations, weights: model.weights, flushes_f16: model.flushes_f16 }
            }
        }
    }
}

impl Shared<'_> {
    /// The variance that the errors of activation row `at` with values `x` give to Σ g·x.
    fn variance(&self, at: usize, g: &[f64], x: &[f32]) -> f64 {
        match self {
            Shared::Nothing => 0.0,
            Shared::Converted { activations, flushes_f16, .. } => {
                let (u, e) = (activations.relative(), activations.absolute(*flushes_f16));
                let near_zero = |x: f64| if x.abs() < 2f64.powi(-14) { e * e / 3.0 } else { 0.0 };
                let variance = |x: f64| u * u * x * x / 6.0 + near_zero(x);
                g.iter().zip(x).map(|(g, x)| variance(f64::from(*x)) * g * g).sum()
            }
            Shared::Quantised { blocks, quantiser } => {
                let relative = quantise::relative_error(quantiser);
                let of_block = |((g, x), block): ((&[f64], &[f32]), &Block)| {
                    let steps: f64 = g.iter().map(|g| g * g).sum::<f64>() * block.step() * block.step() / 12.0;
                    let along: f64 = g.iter().zip(x).map(|(g, x)| g * f64::from(*x)).sum();
                    steps + relative * relative / 3.0 * along * along
                };
                g.chunks(ACTIVATION_BLOCK).zip(x.chunks(ACTIVATION_BLOCK)).zip(&blocks[at]).map(of_block).sum()
            }
        }
    }
}

/// What the outputs were made of.
pub(super) struct Operands<'a> {
    pub(super) walk: Walk<'a>,
    /// Activations `[n][b][k]`.
    pub(super) x: &'a [f32],
    /// Sums of the activation rows.
    pub(super) x_rows: &'a [RowSums],
}

impl Operands<'_> {
    /// Σ c·x over the slots of a tile, by row and column of its weights, for two sets of coefficients.
    fn along(&self, tile: &Tile<'_>, c: [&[f64]; 2]) -> [Array2<f64>; 2] {
        let (case, x_rows) = (self.walk.case, self.walk.x_rows(&tile.column));
        let x_of = |(slot, column): (usize, usize)| f64::from(self.x[x_rows[slot] * case.k + column]);
        let x = Array2::from_shape_fn((x_rows.len(), case.k), x_of);
        c.map(|c| coefficients(c, tile, case.m).t().dot(&x))
    }
}

/// The three checks where they cannot be made.
pub(super) fn not_possible(why: &str) -> Vec<Check> {
    ["scale", "bias", "noise"].map(|name| Check::not_possible(name, why)).into()
}

/// Sums over outputs, with weights ω = 1/σ².
#[derive(Clone, Copy, Default)]
struct Totals {
    /// Outputs, and activation rows that have some.
    outputs: usize,
    rows: usize,
    /// Σω and Σωy².
    weights: f64,
    squares: f64,
    /// Σωρ, Σωρy and Σωρ².
    errors: f64,
    along: f64,
    noise: f64,
    /// Σω²v and Σω²y²v, v the variance of the accumulation alone.
    own: f64,
    own_along: f64,
    /// Σω·e and Σω|y|·e, e what need not be random.
    near_zero: f64,
    near_zero_along: f64,
}

impl Totals {
    fn add(&mut self, o: &Output) {
        let w = 1.0 / o.variance;
        self.outputs += 1;
        self.weights += w;
        self.squares += w * o.y * o.y;
        self.errors += w * o.error;
        self.along += w * o.error * o.y;
        self.noise += w * o.error * o.error;
        self.own += w * w * o.own_variance;
        self.own_along += w * w * o.own_variance * o.y * o.y;
        self.near_zero += w * o.near_zero;
        self.near_zero_along += w * o.near_zero * o.y.abs();
    }

    fn join(&mut self, other: &Totals) {
        self.outputs += other.outputs;
        self.weights += other.weights;
        self.squares += other.squares;
        self.errors += other.errors;
        self.along += other.along;
        self.noise += other.noise;
        self.own += other.own;
        self.own_along += other.own_along;
        self.near_zero += other.near_zero;
        self.near_zero_along += other.near_zero_along;
    }
}

/// The three checks, over the outputs of these slots: `outputs` is asked for those of each slot that were judged, by row.
pub(super) fn checks<I: Iterator<Item = (usize, Output)>>(
    operands: &Operands<'_>,
    shared: &Shared<'_>,
    slots: &[usize],
    outputs: impl Fn(usize) -> I + Sync,
) -> Vec<Check> {
    let case = operands.walk.case;
    let known = |slot| outputs(slot).filter(|(_, o)| o.variance > 0.0 && o.variance.is_finite());
    let of_slot = |slot: &usize| {
        let mut totals = Totals::default();
        known(*slot).for_each(|(_, o)| totals.add(&o));
        totals
    };
    // One after the other, so that sums are the same in every run.
    let (mut totals, mut rows) = (Totals::default(), BTreeSet::new());
    for (slot, of_slot) in slots.iter().zip(slots.par_iter().map(of_slot).collect::<Vec<_>>()) {
        totals.join(&of_slot);
        rows.extend((of_slot.outputs > 0).then(|| case.x_row(*slot)));
    }
    totals.rows = rows.len();
    if totals.outputs == 0 {
        let why = "no output has an error of known variance";
        return not_possible(why);
    }
    let [of_slope, of_mean] = match shared {
        Shared::Nothing => [0.0; 2],
        _ => {
            let mut c = [vec![0.0; case.slots() * case.m], vec![0.0; case.slots() * case.m]];
            for (slot, (row, o)) in slots.iter().flat_map(|slot| known(*slot).map(move |output| (*slot, output))) {
                let i = slot * case.m + row;
                c[0][i] = if totals.squares > 0.0 { o.y / o.variance / totals.squares } else { 0.0 };
                c[1][i] = 1.0 / o.variance / totals.weights;
            }
            shared_variances(operands, shared, [&c[0], &c[1]])
        }
    };
    let slope = if totals.squares > 0.0 { 1.0 / totals.squares } else { 0.0 };
    let along = Estimate {
        value: totals.along * slope,
        variance: totals.own_along * slope * slope + of_slope,
        not_random: totals.near_zero_along * slope,
    };
    let scale = verdict("scale", along, |value| format!("all outputs together are scaled by {:.6}", 1.0 + value));
    let mean = 1.0 / totals.weights;
    let off = Estimate {
        value: totals.errors * mean,
        variance: totals.own * mean * mean + of_mean,
        not_random: totals.near_zero * mean,
    };
    let bias = verdict("bias", off, |value| format!("all outputs together are off by {value:.3e}"));
    vec![scale, bias, noise(&totals)]
}

/// A slope or a mean, its variance, and how much of it need not be random.
struct Estimate {
    value: f64,
    variance: f64,
    not_random: f64,
}

fn verdict(name: &str, estimate: Estimate, what: impl Fn(f64) -> String) -> Check {
    let Estimate { value, variance, not_random } = estimate;
    let deviations = (value.abs() - not_random) / variance.sqrt();
    // No variance and no value is nothing to see.
    if value.abs() <= not_random || deviations <= LIMIT {
        return Check::passed(name);
    }
    let what = format!("{}, {deviations:.1} standard deviations where {LIMIT} are allowed", what(value));
    Check::failed(name, Failure::new(what))
}

/// The errors are not larger, as a whole, than they should be.
fn noise(totals: &Totals) -> Check {
    if totals.rows < ROWS_FOR_NOISE {
        let why = format!("fewer than {ROWS_FOR_NOISE} activation rows");
        return Check::not_possible("noise", why);
    }
    let rms = (totals.noise / totals.outputs as f64).sqrt();
    let limit = 1.1 + 6.0 / (2.0 * totals.rows as f64).sqrt();
    if rms <= limit {
        return Check::passed("noise");
    }
    let what = format!("errors are {rms:.2} times as large as this arithmetic makes them, {limit:.2} are allowed");
    Check::failed("noise", Failure::new(what))
}

/// The variance that shared errors give to Σ c·ρ, for two sets of coefficients `[slots][m]`. What is found for the parts
/// of the output in parallel is added one after the other, so that it is the same in every run.
fn shared_variances(operands: &Operands<'_>, shared: &Shared<'_>, c: [&[f64]; 2]) -> [f64; 2] {
    let mut variances = of_activations(operands, shared, c);
    if let Shared::Converted { weights, flushes_f16, .. } = shared
        && *weights != Conversion::None
    {
        let (u, e) = (weights.relative(), weights.absolute(*flushes_f16));
        let variance = |w: f64| u * u / 6.0 * w * w + e * e / 3.0;
        // All slots of an expert together: they share its stored weights.
        let tiles = operands.walk.tiles(usize::MAX).map(|tile| of_weights(operands, variance, &tile, c));
        tiles.collect::<Vec<_>>().into_iter().for_each(|of_tile| add(&mut variances, of_tile));
    }
    if let Shared::Quantised { quantiser, .. } = shared
        && quantiser.parts.scales == Scales::HalfWeights
    {
        let tiles = operands.walk.tiles(usize::MAX).map(|tile| of_scales(operands, quantiser, &tile, c));
        tiles.collect::<Vec<_>>().into_iter().for_each(|of_tile| add(&mut variances, of_tile));
    }
    variances
}

fn add(sums: &mut [f64; 2], others: [f64; 2]) {
    sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
}

/// The coefficients of a tile, `[slots][rows]`.
fn coefficients(c: &[f64], tile: &Tile<'_>, m: usize) -> Array2<f64> {
    let shape = (tile.column.slots.len(), tile.rows.len());
    Array2::from_shape_fn(shape, |(slot, row)| c[tile.column.slots[slot] * m + tile.rows.start + row])
}

/// The errors of stored weights; `variance` is that of one's conversion.
fn of_weights(operands: &Operands<'_>, variance: impl Fn(f64) -> f64, tile: &Tile<'_>, c: [&[f64]; 2]) -> [f64; 2] {
    let (weights, along) = (operands.walk.decode(tile), operands.along(tile, c));
    along.map(|along| weights.w.iter().zip(&along).map(|(w, h)| variance(*w) * h * h).sum())
}

/// The errors of scales and minima of stored weights that are rounded to f16, by block of 32.
fn of_scales(operands: &Operands<'_>, quantiser: &Quantiser, tile: &Tile<'_>, c: [&[f64]; 2]) -> [f64; 2] {
    let (weights, along) = (operands.walk.decode(tile), operands.along(tile, c));
    let codes = weights.codes(quantiser);
    let parts = [Some(codes.as_ref().unwrap_or(&weights.w)), weights.o.as_ref()];
    along.map(|along| {
        let of_part = |part: &Array2<f64>| -> f64 {
            let products = part * &along;
            let blocks = products.axis_chunks_iter(Axis(1), ACTIVATION_BLOCK);
            blocks.map(|block| block.sum_axis(Axis(1)).iter().map(|sum| sum * sum).sum::<f64>()).sum()
        };
        parts.into_iter().flatten().map(of_part).sum::<f64>() * 2f64.powi(-22) / 3.0
    })
}

/// Slots whose gradients are made together.
const COLUMN_SLOTS: usize = 256;

/// The errors of activations.
fn of_activations(operands: &Operands<'_>, shared: &Shared<'_>, c: [&[f64]; 2]) -> [f64; 2] {
    let case = operands.walk.case;
    let columns = operands.walk.columns(COLUMN_SLOTS);
    let mut variances = [0.0; 2];
    // A row of activations that has only one slot is done with its column.
    let is_done = case.b == case.used;
    let zeros = || Array2::<f64>::zeros((if is_done { 0 } else { operands.x_rows.len() }, case.k));
    let mut gradients = [zeros(), zeros()];
    let of_row = |(at, g): (usize, ArrayView1<'_, f64>)| {
        let x = &operands.x[at * case.k..][..case.k];
        g.as_slice().map_or(f64::NAN, |g| shared.variance(at, g, x))
    };
    for some in columns.chunks(4 * rayon::current_num_threads()) {
        let of_columns = some.par_iter().map(|column| {
            let of_column = Gradient::new(operands, shared, column, c);
            let x_rows = operands.walk.x_rows(column);
            let rows = |g: &Array2<f64>| x_rows.iter().copied().zip(g.rows()).map(of_row).sum::<f64>();
            let done = is_done.then(|| [0, 1].map(|which| rows(&of_column.activations[which])));
            (x_rows, of_column, done)
        });
        for (x_rows, of_column, done) in of_columns.collect::<Vec<_>>() {
            add(&mut variances, of_column.offsets);
            match done {
                Some(done) => add(&mut variances, done),
                None => gradients.iter_mut().zip(&of_column.activations).for_each(|(to, from)| {
                    x_rows
                        .iter()
                        .zip(from.rows())
                        .for_each(|(at, g)| to.row_mut(*at).zip_mut_with(&g, |to, g| *to += g));
                }),
            }
        }
    }
    let of_rows = |g: &Array2<f64>| g.rows().into_iter().enumerate().map(of_row).sum::<f64>();
    add(&mut variances, [of_rows(&gradients[0]), of_rows(&gradients[1])]);
    variances
}

/// What a column adds.
struct Gradient {
    /// g = Σ c·w by slot and column of the weights.
    activations: [Array2<f64>; 2],
    /// The variance of stored sums of blocks.
    offsets: [f64; 2],
}

impl Gradient {
    fn new(operands: &Operands<'_>, shared: &Shared<'_>, column: &Column<'_>, c: [&[f64]; 2]) -> Self {
        let (walk, x_rows) = (&operands.walk, operands.walk.x_rows(column));
        let zeros = || Array2::zeros((column.slots.len(), walk.case.k));
        let mut gradient = Gradient { activations: [zeros(), zeros()], offsets: [0.0; 2] };
        let quantiser = match shared {
            Shared::Quantised { quantiser, .. } => Some(quantiser),
            _ => None,
        };
        for tile in walk.tiles_of(column) {
            let weights = walk.decode_parts(&tile, quantiser.is_some_and(|q| q.parts.centres));
            let codes = quantiser.and_then(|q| weights.codes(q));
            for (which, c) in c.iter().enumerate() {
                let c = coefficients(c, &tile, walk.case.m);
                general_mat_mul(1.0, &c, codes.as_ref().unwrap_or(&weights.w), 1.0, &mut gradient.activations[which]);
                if let (Shared::Quantised { blocks, .. }, Some(offsets)) = (shared, weights.block_offsets()) {
                    let errors = c.indexed_iter().filter(|(_, c)| **c != 0.0);
                    gradient.offsets[which] +=
                        errors.map(|((s, r), c)| c * c * stored_sums(offsets.row(r), &blocks[x_rows[s]])).sum::<f64>();
                }
            }
        }
        gradient
    }
}

/// Σ over blocks of the variance that stored sums of activations add to one output.
fn stored_sums(offsets: ArrayView1<'_, f64>, blocks: &[Block]) -> f64 {
    offsets.iter().zip(blocks).map(|(o, b)| (o * b.sum_error()).powi(2) / 3.0).sum()
}
