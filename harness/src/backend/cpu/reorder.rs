//! Stage reorder: the activation row of each sorted slot.
//!
//! Activations are `[k, b, n]` f32; the result is `[sorted slot][k]`. Slot
//! `token * used + e` takes row `e mod b` of its token, whatever `b` is:
//! shared (1), one for each slot (`used`) or anything between. Padding gets
//! zeros. Guards against: division where the remainder is meant, rows that are
//! not a multiple of four values, and slot numbers kept in 16 bits.

use conform_cases::formats::read_f32;
use rayon::prelude::*;

use super::arguments::{PADDING, Sizes, View};

/// Copies each sorted slot's activation row.
pub(super) fn reorder(slots: &[u32], x: View<'_>, sizes: Sizes, rows: &mut [f32]) {
    rows.par_chunks_mut(sizes.k).zip(slots).for_each(|(row, slot)| {
        if *slot == PADDING {
            row.fill(0.0);
            return;
        }
        let (token, e) = (*slot as usize / sizes.used, *slot as usize % sizes.used);
        for (to, from) in row.iter_mut().zip(read_f32(x.row([e % sizes.b, token, 0]))) {
            *to = from;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::formats::ElemType;
    use conform_cases::plan::{Role, Tensor};

    #[test]
    fn slots_take_the_row_of_their_remainder() {
        let (k, used, n) = (5, 6, 3);
        for b in [1, 2, 3, 4, 6] {
            let tensor = Tensor::whole("x", ElemType::F32, [k, b, n, 1], Role::Input).with_margins([true; 4]);
            let mut bytes = vec![0xff; tensor.parent_bytes()];
            for (row, token) in (0..n).flat_map(|t| (0..b).map(move |r| (r, t))) {
                let values = (0..k).flat_map(|i| ((100 * token + 10 * row + i) as f32).to_le_bytes());
                bytes[tensor.row_range([row, token, 0])].copy_from_slice(&values.collect::<Vec<_>>());
            }
            let slots: Vec<u32> = (0..(used * n) as u32).rev().chain([PADDING]).collect();
            let mut rows = vec![f32::NAN; slots.len() * k];
            let sizes = Sizes { k, m: 1, experts: 1, used, b, n };
            reorder(&slots, View { tensor: &tensor, bytes: &bytes }, sizes, &mut rows);
            for (slot, row) in slots.iter().zip(rows.chunks(k)) {
                let (token, e) = (*slot as usize / used, *slot as usize % used);
                let want = |i| if *slot == PADDING { 0.0 } else { (100 * token + 10 * (e % b) + i) as f32 };
                assert_eq!(row, (0..k).map(want).collect::<Vec<_>>(), "b {b} slot {slot}");
            }
        }
    }
}
