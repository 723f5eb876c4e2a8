//! Stage top-k: for each row the indices of the k largest keys.
//!
//! A radix select: each pass counts the keys by their next byte, among those
//! that agree with the k-th in the bytes before, and so finds one more byte of
//! the k-th key. Then every larger key is taken, and of those equal to the k-th
//! the first ones until k are there. Indices come out in rising order.
//! Guards against: a buffer of candidates that overflows (there is none, and so
//! no limit to columns, k or ties), copies of the k-th key that displace larger
//! ones (their number is known before the first is written), NaN (it has a place
//! in the order of bits like any key), and views.

use conform_cases::formats::read_f32;
use conform_cases::plan::Order;
use rayon::prelude::*;

use super::arguments::View;
use super::order::sort_key;

/// Writes `k` indices for each row.
pub(super) fn top_k(x: View<'_>, k: usize, out: &mut [u8]) {
    out.par_chunks_exact_mut(4 * k).with_min_len(16).enumerate().for_each(|(row, out)| {
        let keys = || read_f32(x.nth_row(row)).map(|value| sort_key(value, Order::Desc));
        let (kth, mut ties) = find(keys, k);
        let chosen = keys().enumerate().filter(|(_, key)| *key < kth || *key == kth && take(&mut ties));
        for (out, (index, _)) in out.as_chunks_mut::<4>().0.iter_mut().zip(chosen) {
            *out = (index as i32).to_le_bytes();
        }
    });
}

/// Counts down; false once nothing is left.
fn take(left: &mut usize) -> bool {
    let any = *left > 0;
    *left -= usize::from(any);
    any
}

/// The k-th smallest key, and how many of the keys equal to it belong to the k smallest.
fn find<I: Iterator<Item = u32>>(keys: impl Fn() -> I, k: usize) -> (u32, usize) {
    let (mut prefix, mut left) = (0, k);
    for shift in [24, 16, 8, 0] {
        let mut counts = [0; 256];
        // A shift by 32 has no meaning: the first pass has no prefix yet.
        let agrees = |key: u32| u64::from(key) >> (shift + 8) == u64::from(prefix) >> (shift + 8);
        for key in keys().filter(|key| agrees(*key)) {
            counts[(key >> shift & 0xff) as usize] += 1;
        }
        let mut byte = 0;
        while byte < 255 && counts[byte] < left {
            left -= counts[byte];
            byte += 1;
        }
        prefix |= (byte as u32) << shift;
    }
    (prefix, left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::formats::{ElemType, read_i32};
    use conform_cases::plan::{Role, Tensor};

    /// Chooses from rows of `value(element)` and compares with a sort that keeps ties in order.
    fn check(shape: [usize; 4], k: usize, value: impl Fn(usize) -> f32) {
        let tensor = Tensor::whole("x", ElemType::F32, shape, Role::Input).with_margins([true; 4]);
        let bytes: Vec<u8> = (0..tensor.parent_bytes() / 4).flat_map(|i| value(i).to_le_bytes()).collect();
        let x = View { tensor: &tensor, bytes: &bytes };
        let mut out = vec![0xff; tensor.elements() / shape[0] * k * 4];
        top_k(x, k, &mut out);
        for (row, out) in out.chunks(4 * k).enumerate() {
            let keys: Vec<u32> = read_f32(x.nth_row(row)).map(|v| sort_key(v, Order::Desc)).collect();
            let mut want: Vec<usize> = (0..shape[0]).collect();
            want.sort_by_key(|i| keys[*i]);
            want.truncate(k);
            want.sort_unstable();
            assert!(read_i32(out).map(|i| i as usize).eq(want), "{shape:?}, k {k}, row {row}");
        }
    }

    #[test]
    fn any_number_of_any_columns() {
        for cols in [1usize, 2, 3, 31, 160, 288, 1023, 1025, 5000] {
            for k in [1, cols.div_ceil(2), cols] {
                check([cols, 3, 1, 1], k, |i| ((i * 7919) % 1009) as f32 - 500.0);
                check([cols, 2, 1, 1], k, |i| ((i * 31) % 4) as f32);
            }
        }
        check([7, 2, 3, 2], 5, |i| ((i * 31) % 64) as f32);
        check([3, 70001, 1, 1], 2, |i| ((i * 31) % 64) as f32);
        check([65537, 1, 1, 1], 9999, |i| ((i * 40503) % 65537) as f32);
    }

    #[test]
    fn infinities_zeros_and_nan() {
        const VALUES: [f32; 8] =
            [f32::INFINITY, 0.0, f32::NEG_INFINITY, -0.0, 1.0e-45, f32::MAX, f32::NAN, f32::from_bits(0xffc0_0001)];
        for k in [1, 2, 16, 32, 33] {
            check([33, 5, 1, 1], k, |i| VALUES[i * i % 6]);
            check([33, 5, 1, 1], k, |i| VALUES[i * 3 % 8]);
            check([33, 5, 1, 1], k, |_| f32::NEG_INFINITY);
        }
    }
}
