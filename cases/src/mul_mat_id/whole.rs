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

use ndarray::{Array2, ArrayView1};
use rayon::prelude::*;

use super::exact::ACTIVATION_BLOCK;
use super::quantise::Block;
use super::rows::RowSums;
use super::tiles::{Tile, Walk};
use crate::judge::{Check, Failure};
use crate::model::{Activations, Conversion, Model};

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
        /// Relative error of a stored scale.
        relative: f64,
    },
}

impl<'a> Shared<'a> {
    /// What outputs share under a model; `blocks` are those of its quantiser, unless its codes are known.
    pub(super) fn of(model: &Model, blocks: Option<&'a [Vec<Block>]>, relative: f64) -> Self {
        match (model.activations, blocks) {
            (Activations::Quantised(_), Some(blocks)) => Shared::Quantised { blocks, relative },
            (Activations::Quantised(_), None) => Shared::Nothing,
            (Activations::Converted(Conversion::None), _) if model.weights == Conversion::None => Shared::Nothing,
            (Activations::Converted(activations), _) => {
                Shared::Converted { activations, weights: model.weights, flushes_f16: model.flushes_f16 }
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

/// The three checks, over the outputs of these slots: `output` is asked for each slot and row, and has none where nothing
/// was judged.
pub(super) fn checks(
    operands: &Operands<'_>,
    shared: &Shared<'_>,
    slots: &[usize],
    output: impl Fn(usize, usize) -> Option<Output> + Sync,
) -> Vec<Check> {
    let case = operands.walk.case;
    let known = |slot, row| output(slot, row).filter(|o| o.variance > 0.0 && o.variance.is_finite());
    let of_slot = |slot: &usize| {
        let mut totals = Totals::default();
        (0..case.m).filter_map(|row| known(*slot, row)).for_each(|o| totals.add(&o));
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
            for (slot, row) in slots.iter().flat_map(|slot| (0..case.m).map(move |row| (*slot, row))) {
                let i = slot * case.m + row;
                if let Some(o) = known(slot, row) {
                    c[0][i] = if totals.squares > 0.0 { o.y / o.variance / totals.squares } else { 0.0 };
                    c[1][i] = 1.0 / o.variance / totals.weights;
                }
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

/// The variance that shared errors give to Σ c·ρ, for two sets of coefficients `[slots][m]`.
fn shared_variances(operands: &Operands<'_>, shared: &Shared<'_>, c: [&[f64]; 2]) -> [f64; 2] {
    let empty = || Gradient::empty(operands);
    let add = |mut gradient: Gradient, tile: Tile<'_>| {
        gradient.add(operands, shared, &tile, c);
        gradient
    };
    // All slots of an expert together: stored weights are shared by them.
    let gradient = operands.walk.tiles(usize::MAX).fold(empty, add).reduce(empty, Gradient::join);
    [0, 1].map(|which| gradient.variance(operands, shared, which))
}

/// g = Σ c·w by activation row and column, and what stored weights add.
struct Gradient {
    /// `[x rows][k]`.
    activations: [Array2<f64>; 2],
    weights: [f64; 2],
    offsets: [f64; 2],
}

impl Gradient {
    fn empty(operands: &Operands<'_>) -> Self {
        let zeros = || Array2::zeros((operands.x_rows.len(), operands.walk.case.k));
        Gradient { activations: [zeros(), zeros()], weights: [0.0; 2], offsets: [0.0; 2] }
    }

    fn add(&mut self, operands: &Operands<'_>, shared: &Shared<'_>, tile: &Tile<'_>, c: [&[f64]; 2]) {
        let (m, x_rows) = (operands.walk.case.m, operands.walk.x_rows(tile));
        let weights = operands.walk.decode(tile);
        let k = weights.w.ncols();
        let converts_weights = matches!(shared, Shared::Converted { weights, .. } if *weights != Conversion::None);
        // Only where weights are converted are the activations needed.
        let x_of = |(slot, column): (usize, usize)| f64::from(operands.x[x_rows[slot] * k + column]);
        let x = Array2::from_shape_fn((if converts_weights { x_rows.len() } else { 0 }, k), x_of);
        for (which, c) in c.iter().enumerate() {
            let c = Array2::from_shape_fn((tile.slots.len(), tile.rows.len()), |(slot, row)| {
                c[tile.slots[slot] * m + tile.rows.start + row]
            });
            for (g, at) in c.dot(&weights.w).rows().into_iter().zip(&x_rows) {
                let mut place = self.activations[which].row_mut(*at);
                place += &g;
            }
            match shared {
                Shared::Quantised { blocks, .. } => {
                    self.offsets[which] += weights.block_offsets().map_or(0.0, |offsets| {
                        let errors = c.indexed_iter().filter(|(_, c)| **c != 0.0);
                        errors.map(|((s, r), c)| c * c * stored_sums(offsets.row(r), &blocks[x_rows[s]])).sum()
                    });
                }
                Shared::Converted { weights: conversion, flushes_f16, .. } if converts_weights => {
                    let (u, e) = (conversion.relative(), conversion.absolute(*flushes_f16));
                    let variance = |w: f64| u * u / 6.0 * w * w + e * e / 3.0;
                    let shared = c.t().dot(&x);
                    self.weights[which] +=
                        weights.w.iter().zip(&shared).map(|(w, h)| variance(*w) * h * h).sum::<f64>();
                }
                _ => {}
            }
        }
    }

    fn join(mut self, other: Self) -> Self {
        for which in 0..2 {
            self.activations[which] += &other.activations[which];
            self.weights[which] += other.weights[which];
            self.offsets[which] += other.offsets[which];
        }
        self
    }

    fn variance(&self, operands: &Operands<'_>, shared: &Shared<'_>, which: usize) -> f64 {
        let k = operands.walk.case.k;
        let of_row = |at: usize, g: &[f64], x: &[f32]| match shared {
            Shared::Nothing => 0.0,
            Shared::Converted { activations, flushes_f16, .. } => {
                let (u, e) = (activations.relative(), activations.absolute(*flushes_f16));
                let near_zero = |x: f64| if x.abs() < 2f64.powi(-14) { e * e / 3.0 } else { 0.0 };
                let variance = |x: f64| u * u * x * x / 6.0 + near_zero(x);
                g.iter().zip(x).map(|(g, x)| variance(f64::from(*x)) * g * g).sum::<f64>()
            }
            Shared::Quantised { blocks, relative } => {
                let of_block = |(b, block): (usize, &Block)| {
                    let range = b * ACTIVATION_BLOCK..k.min((b + 1) * ACTIVATION_BLOCK);
                    let (g, x) = (&g[range.clone()], &x[range]);
                    let steps: f64 = g.iter().map(|g| g * g).sum::<f64>() * block.step() * block.step() / 12.0;
                    let along: f64 = g.iter().zip(x).map(|(g, x)| g * f64::from(*x)).sum();
                    steps + relative * relative / 3.0 * along * along
                };
                blocks[at].iter().enumerate().map(of_block).sum()
            }
        };
        let rows = self.activations[which].rows().into_iter().zip(operands.x.chunks(k)).enumerate();
        let of_rows: f64 = rows.filter_map(|(at, (g, x))| g.as_slice().map(|g| of_row(at, g, x))).sum();
        of_rows + self.weights[which] + self.offsets[which]
    }
}

/// Σ over blocks of the variance that stored sums of activations add to one output.
fn stored_sums(offsets: ArrayView1<'_, f64>, blocks: &[Block]) -> f64 {
    offsets.iter().zip(blocks).map(|(o, b)| (o * b.sum_error()).powi(2) / 3.0).sum()
}
