//! Stages gemm and store: sorted activation rows times expert weights, and the way back.
//!
//! A task is one tile: 64 rows of one expert (a panel) by 32 sorted slots, over
//! k in steps of 16. Everything is f32, and each output is summed in order of k:
//! `sum += w * x`, never fused, so the bits do not depend on the processor, on
//! the number of threads or on a slot's place. Products are
//! `[tile][panel][slot][row]`, a contiguous piece for each task.
//!
//! Guards against: m not a multiple of 64 and k not one of 16 (both tiles hold
//! zeros there, so nothing left in them can count), padding that overwrites a
//! real result (store skips it), and positions kept in 32 bits.

use conform_cases::formats::ElemType;
use rayon::prelude::*;

use super::arguments::{PADDING, Sizes, TILE_K, TILE_ROWS, TILE_SLOTS, Tiles, View, Weights};
use super::tile::{InterleavedPanel, Panel, RowPanel, WeightTile};
use super::{decode, decode_k};

/// Products of one task.
const TASK: usize = TILE_SLOTS * TILE_ROWS;
/// Slots multiplied together: their sums over [`LANES`] rows stay in registers.
const GROUP: usize = 4;
/// Rows multiplied together.
const LANES: usize = 16;

/// Sums of some slots, `[slot][row]`.
type Sums<const SLOTS: usize> = [[f32; TILE_ROWS]; SLOTS];

/// Multiplies all used tiles. Groups of slots that are padding alone are left out.
pub(super) fn gemm(tiles: Tiles<'_>, weights: Weights<'_>, rows: &[f32], sizes: Sizes, products: &mut [f32]) {
    let panels = sizes.panels();
    products.par_chunks_mut(TASK).enumerate().for_each(|(task, products)| {
        let (tile, panel) = (task / panels, task % panels);
        let expert = tiles.experts[tile] as usize;
        let slots = &tiles.slots[tile * TILE_SLOTS..][..TILE_SLOTS];
        let taken = slots.iter().rposition(|slot| *slot != PADDING).map_or(0, |last| last + 1);
        let rows = &rows[tile * TILE_SLOTS * sizes.k..][..taken * sizes.k];
        let task = Task { sizes, expert, panel, rows, products };
        match weights {
            Weights::Interleaved(w) => task.multiply(&InterleavedPanel::new(w, sizes, expert, panel)),
            Weights::Rows(w) => match w.tensor.ty {
                ElemType::F32 => task.multiply_rows(w, decode::f32),
                ElemType::F16 => task.multiply_rows(w, decode::f16),
                ElemType::Bf16 => task.multiply_rows(w, decode::bf16),
                ElemType::Q4_0 => task.multiply_rows(w, decode::q4_0),
                ElemType::Q4_1 => task.multiply_rows(w, decode::q4_1),
                ElemType::Q5_0 => task.multiply_rows(w, decode::q5_0),
                ElemType::Q5_1 => task.multiply_rows(w, decode::q5_1),
                ElemType::Q8_0 => task.multiply_rows(w, decode::q8_0),
                ElemType::Q4K => task.multiply_rows(w, decode_k::q4_k),
                ElemType::Q6K => task.multiply_rows(w, decode_k::q6_k),
                // Refused when the plan was loaded; mxfp4 is interleaved.
                _ => {}
            },
        }
    });
}

/// One tile of products: a panel of an expert by some sorted activation rows.
struct Task<'a> {
    sizes: Sizes,
    expert: usize,
    panel: usize,
    rows: &'a [f32],
    products: &'a mut [f32],
}

impl Task<'_> {
    /// With weights where they were written, and the decoder of their type.
    fn multiply_rows(self, weights: View<'_>, decode: impl Fn(&[u8], usize, &mut [f32])) {
        let panel = RowPanel::new(weights, self.sizes, self.expert, self.panel, decode);
        self.multiply(&panel);
    }

    /// Compiled for each instruction set and chosen at run time.
    fn multiply(self, panel: &impl Panel) {
        pulp::Arch::new().dispatch(|| multiply_tile(panel, self.rows, self.sizes.k, self.products));
    }
}

#[inline(always)]
fn multiply_tile<P: Panel>(panel: &P, rows: &[f32], k: usize, products: &mut [f32]) {
    let mut weights: WeightTile = [[0.0; TILE_ROWS]; TILE_K];
    let mut x = [[0.0; TILE_K]; TILE_SLOTS];
    let mut sums: Sums<TILE_SLOTS> = [[0.0; TILE_ROWS]; TILE_SLOTS];
    let taken = rows.len() / k;
    for k0 in (0..k).step_by(TILE_K) {
        let depth = TILE_K.min(k - k0);
        panel.load(k0, depth, &mut weights);
        for (x, row) in x.iter_mut().zip(rows.chunks_exact(k)) {
            x[..depth].copy_from_slice(&row[k0..k0 + depth]);
            x[depth..].fill(0.0);
        }
        let groups = sums.as_chunks_mut::<GROUP>().0.iter_mut().zip(x.as_chunks::<GROUP>().0);
        for (sums, x) in groups.take(taken.div_ceil(GROUP)) {
            accumulate(&weights, x, sums);
        }
    }
    for (product, sums) in products.chunks_exact_mut(TILE_ROWS).zip(&sums).take(taken) {
        product.copy_from_slice(sums);
    }
}

/// Adds one step of k to the sums of a group of slots.
///
/// The four slots have a name each: as an array their sums stay in registers only at the highest optimisation.
#[inline(always)]
fn accumulate(weights: &WeightTile, x: &[[f32; TILE_K]; GROUP], sums: &mut Sums<GROUP>) {
    for lanes in 0..TILE_ROWS / LANES {
        let [mut a, mut b, mut c, mut d] = [0, 1, 2, 3].map(|slot| sums[slot].as_chunks::<LANES>().0[lanes]);
        for (k, column) in weights.iter().enumerate() {
            let w = &column.as_chunks::<LANES>().0[lanes];
            let [x0, x1, x2, x3] = [x[0][k], x[1][k], x[2][k], x[3][k]];
            for row in 0..LANES {
                a[row] += w[row] * x0;
                b[row] += w[row] * x1;
                c[row] += w[row] * x2;
                d[row] += w[row] * x3;
            }
        }
        for (sums, part) in sums.iter_mut().zip([a, b, c, d]) {
            sums.as_chunks_mut::<LANES>().0[lanes] = part;
        }
    }
}

/// Takes the products of each sorted slot to `out[token][slot][row]`; padding has no place there.
pub(super) fn store(slots: &[u32], products: &[f32], sizes: Sizes, out: &mut [u8]) {
    for (place, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
        let (tile, column) = (place / TILE_SLOTS, place % TILE_SLOTS);
        let row_bytes = 4 * sizes.m;
        let out = &mut out[*slot as usize * row_bytes..][..row_bytes];
        for (panel, out) in out.chunks_mut(4 * TILE_ROWS).enumerate() {
            let from = (tile * sizes.panels() + panel) * TASK + column * TILE_ROWS;
            for (out, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(&products[from..]) {
                *out = value.to_le_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::formats::read_f32;
    use conform_cases::plan::{Role, Tensor};

    /// Two tiles of two experts against f64; padding sits at the end of a tile and in its middle.
    fn check(k: usize, m: usize, slots: &[u32]) {
        let sizes = Sizes { k, m, experts: 2, used: 5, b: 1, n: 13 };
        let tensor = Tensor::whole("w", ElemType::F32, [k, m, 2, 1], Role::Weights).with_margins([true; 4]);
        let value = |i: usize| ((i * 7919 % 257) as f32 - 128.0) / 64.0 + 0.01;
        let bytes: Vec<u8> = (0..tensor.parent_bytes() / 4).flat_map(|i| value(i).to_le_bytes()).collect();
        let weights = View { tensor: &tensor, bytes: &bytes };
        let rows: Vec<f32> = (0..slots.len() * k).map(|i| value(i * 3 + 1)).collect();
        let experts = [1, 0];
        let mut products = vec![f32::NAN; 2 * sizes.panels() * TASK];
        gemm(Tiles { experts: &experts, slots }, Weights::Rows(weights), &rows, sizes, &mut products);
        let mut out = vec![0xff; sizes.slots() * m * 4];
        store(slots, &products, sizes, &mut out);

        for slot in 0..sizes.slots() {
            let got = &out[slot * m * 4..][..m * 4];
            let Some(place) = slots.iter().position(|s| *s as usize == slot) else {
                assert!(got.iter().all(|b| *b == 0xff), "slot {slot} was written");
                continue;
            };
            let x = &rows[place * k..][..k];
            for (row, got) in read_f32(got).enumerate() {
                let w = weights.row([row, experts[place / TILE_SLOTS] as usize, 0]);
                let terms = read_f32(w).zip(x).map(|(w, x)| f64::from(w) * f64::from(*x));
                let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
                let allowed = size * k as f64 * f64::from(f32::EPSILON) / 2.0;
                assert!((f64::from(got) - sum).abs() <= allowed, "k {k} m {m} slot {slot} row {row}");
            }
        }
    }

    #[test]
    fn tiles_agree_with_a_plain_sum() {
        let mut slots = [PADDING; 2 * TILE_SLOTS];
        for (place, slot) in slots.iter_mut().enumerate().filter(|(place, _)| *place < 40 && *place != 6) {
            *slot = (place * 11 % 65) as u32;
        }
        for (k, m) in [(1, 1), (15, 63), (16, 64), (17, 65), (96, 8), (130, 130)] {
            check(k, m, &slots);
        }
        check(33, 7, &[PADDING; 2 * TILE_SLOTS]);
    }
}
