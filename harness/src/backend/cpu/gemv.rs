//! Stage gemv: the expert matmul of a single token, from interleaved mxfp4 weights.
//!
//! Each lane is one row. Four lane groups stride over the blocks of k; a block
//! is summed as code times activation in f32, its scale is applied to that sum,
//! and the four partial sums are added at the end, in order. The output is
//! `[slot][row]`. Guards against: an infinite scale that meets a sum of zero
//! (byte 255 is NaN here, and no scale is infinite), and rows beyond m.

use conform_cases::formats::read_f32;
use rayon::prelude::*;

use super::arguments::{Ids, Interleaved, TILE_ROWS, View};
use super::tile::{InterleavedPanel, e2m1};

/// Lane groups that share the blocks of a row.
const GROUPS: usize = 4;

/// Multiplies the only token's activation rows with the weights of its experts.
pub(super) fn gemv(ids: Ids<'_>, x: View<'_>, weights: Interleaved<'_>, out: &mut [u8]) {
    let sizes = ids.sizes;
    out.par_chunks_mut(4 * sizes.m).enumerate().for_each(|(slot, out)| {
        let Some(expert) = ids.expert(slot) else { return };
        let x = x.row([slot % sizes.b, 0, 0]);
        out.par_chunks_mut(4 * TILE_ROWS).enumerate().for_each(|(panel, out)| {
            let panel = InterleavedPanel::new(weights, sizes, expert, panel);
            let sums = pulp::Arch::new().dispatch(|| multiply(&panel, x));
            for (out, sum) in out.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
                *out = sum.to_le_bytes();
            }
        });
    });
}

/// The dot products of a panel's rows with one activation row.
#[inline(always)]
fn multiply(panel: &InterleavedPanel<'_>, x: &[u8]) -> [f32; TILE_ROWS] {
    let mut partial = [[0.0; TILE_ROWS]; GROUPS];
    for (block, x) in x.chunks_exact(4 * 32).enumerate() {
        let partial = &mut partial[block % GROUPS];
        let (sums, scales) = (block_sums(panel, block, x), panel.scales(block));
        for row in 0..TILE_ROWS {
            partial[row] += scales[row] * sums[row];
        }
    }
    let [mut sums, rest @ ..] = partial;
    for partial in rest {
        for row in 0..TILE_ROWS {
            sums[row] += partial[row];
        }
    }
    sums
}

/// Code times activation, summed over one block for every row.
#[inline(always)]
fn block_sums(panel: &InterleavedPanel<'_>, block: usize, x: &[u8]) -> [f32; TILE_ROWS] {
    let mut sums = [0.0; TILE_ROWS];
    for (word, x) in x.chunks_exact(4 * 8).enumerate() {
        let words = panel.words(block, word);
        for (i, x) in read_f32(x).enumerate() {
            for row in 0..TILE_ROWS {
                sums[row] += e2m1(words[row] >> (4 * i)) * x;
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::super::arguments::Sizes;
    use super::super::convert::convert;
    use super::*;
    use conform_cases::formats::{ElemType, Parts};
    use conform_cases::plan::{Role, Tensor};

    fn check(k: usize, m: usize, b: usize, ids: &[i32]) {
        let sizes = Sizes { k, m, experts: 3, used: ids.len(), b, n: 1 };
        let w = Tensor::whole("w", ElemType::Mxfp4, [k, m, 3, 1], Role::Weights);
        let mut bytes = vec![0; w.parent_bytes()];
        for (i, block) in bytes.chunks_exact_mut(17).enumerate() {
            let codes = std::array::from_fn(|c| ((i * 31 + c * 7) % 16) as u8);
            ElemType::Mxfp4.encode_block(&Parts { scale: 120 + (i % 9) as u16, codes, ..Parts::default() }, block);
        }
        let w = View { tensor: &w, bytes: &bytes };
        let (mut scales, mut codes) = (vec![0; k / 32 * m * 3], vec![0; k / 8 * m * 3]);
        convert(w, &mut scales, &mut codes);

        let x = Tensor::whole("x", ElemType::F32, [k, b, 1, 1], Role::Input).with_margins([true; 4]);
        let x_bytes: Vec<u8> =
            (0..x.parent_bytes() / 4).flat_map(|i| ((i * 37 % 101) as f32 / 50.0 - 0.97).to_le_bytes()).collect();
        let x = View { tensor: &x, bytes: &x_bytes };
        let ids_tensor = Tensor::whole("ids", ElemType::I32, [ids.len(), 1, 1, 1], Role::Input);
        let ids_bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let view = View { tensor: &ids_tensor, bytes: &ids_bytes };
        let mut out = vec![0xff; ids.len() * m * 4];
        gemv(Ids { view, sizes }, x, Interleaved { scales: &scales, codes: &codes }, &mut out);

        let mut row_values = vec![0.0; k];
        for (slot, (id, out)) in ids.iter().zip(out.chunks(4 * m)).enumerate() {
            if !(0..3).contains(id) {
                assert!(out.iter().all(|b| *b == 0xff), "slot {slot} was written");
                continue;
            }
            for (row, got) in read_f32(out).enumerate() {
                ElemType::Mxfp4.decode(w.row([row, *id as usize, 0]), &mut row_values);
                let x = read_f32(x.row([slot % b, 0, 0]));
                let terms = row_values.iter().zip(x).map(|(w, x)| w * f64::from(x));
                let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
                let roundings = (k.div_ceil(128) + 35) as f64;
                let allowed = size * roundings * f64::from(f32::EPSILON) / 2.0;
                assert!((f64::from(got) - sum).abs() <= allowed, "k {k} m {m} slot {slot} row {row}");
            }
        }
    }

    #[test]
    fn rows_agree_with_a_plain_sum() {
        check(32, 1, 1, &[2]);
        check(96, 63, 2, &[0, 2, 0, 1]);
        check(160, 65, 3, &[2, 2, 1]);
        check(1024, 130, 1, &[-1, 1, 3, i32::MIN]);
    }
}
