//! Stage argsort: for each row the permutation that sorts it.
//!
//! x is f32 with any number of columns and up to four dimensions; the result is
//! i32 in x's shape. Columns are padded to a power of two and go through a
//! bitonic network. An entry is the value's key above its index: keys order
//! every f32 (NaN lies beyond the infinity of its sign, zeros are equal), and
//! equal keys fall back on the index, so there is one answer.
//! Guards against: padding that leaks into the result (it is told apart by its
//! index, never by a value, so infinities cannot meet it), NaN that breaks the
//! order, column and row counts beyond 16 bits, and views.

use conform_cases::formats::read_f32;
use conform_cases::plan::Order;
use rayon::prelude::*;

use super::arguments::View;
use super::order::sort_key;

/// Sorts every row. `keys` holds a row padded to a power of two for each worker.
pub(super) fn argsort(x: View<'_>, order: Order, keys: &mut [u64], out: &mut [u8]) {
    let cols = x.tensor.shape[0];
    let padded = cols.next_power_of_two();
    let rows = x.tensor.elements() / cols;
    let share = rows.div_ceil(keys.len() / padded);
    let workers = keys.par_chunks_mut(padded).zip(out.par_chunks_mut(share * cols * 4));
    workers.enumerate().for_each(|(worker, (keys, out))| {
        for (row, out) in out.chunks_exact_mut(4 * cols).enumerate() {
            let values = read_f32(x.nth_row(worker * share + row));
            for (index, (key, value)) in keys.iter_mut().zip(values).enumerate() {
                *key = u64::from(sort_key(value, order)) << 32 | index as u64;
            }
            for (index, key) in keys.iter_mut().enumerate().skip(cols) {
                *key = index as u64;
            }
            sort(keys, cols);
            for (out, key) in out.as_chunks_mut::<4>().0.iter_mut().zip(&*keys) {
                *out = (*key as u32 as i32).to_le_bytes();
            }
        }
    });
}

/// Whether entry `a` belongs behind entry `b`: padding, whose index is no column, belongs behind everything.
#[inline(always)]
fn behind(a: u64, b: u64, cols: usize) -> bool {
    let padding = |entry: u64| entry as u32 as usize >= cols;
    (padding(a), a) > (padding(b), b)
}

/// Bitonic network over a power of two of entries.
fn sort(keys: &mut [u64], cols: usize) {
    let mut run = 2;
    while run <= keys.len() {
        let mut distance = run / 2;
        while distance > 0 {
            for (i, pair) in keys.chunks_exact_mut(2 * distance).enumerate() {
                // Neighbouring runs sort in opposite directions, which makes the next, longer runs bitonic.
                let rising = (i * 2 * distance) & run == 0;
                let (low, high) = pair.split_at_mut(distance);
                for (a, b) in low.iter_mut().zip(high) {
                    let (x, y) = (*a, *b);
                    let swap = behind(x, y, cols) == rising;
                    (*a, *b) = if swap { (y, x) } else { (x, y) };
                }
            }
            distance /= 2;
        }
        run *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::formats::{ElemType, read_i32};
    use conform_cases::plan::{Role, Tensor};

    /// Sorts rows of `value(element)` and checks permutation, order and ties.
    fn check(shape: [usize; 4], workers: usize, value: impl Fn(usize) -> f32) {
        let tensor = Tensor::whole("x", ElemType::F32, shape, Role::Input).with_margins([true; 4]);
        let bytes: Vec<u8> = (0..tensor.parent_bytes() / 4).flat_map(|i| value(i).to_le_bytes()).collect();
        let x = View { tensor: &tensor, bytes: &bytes };
        for order in [Order::Asc, Order::Desc] {
            let mut keys = vec![u64::MAX; workers * shape[0].next_power_of_two()];
            let mut out = vec![0xff; tensor.elements() * 4];
            argsort(x, order, &mut keys, &mut out);
            for (row, out) in out.chunks(4 * shape[0]).enumerate() {
                let values: Vec<f32> = read_f32(x.nth_row(row)).collect();
                let indices: Vec<usize> = read_i32(out).map(|i| i as usize).collect();
                let mut sorted = indices.clone();
                sorted.sort_unstable();
                assert!(sorted.iter().copied().eq(0..shape[0]), "not a permutation");
                for pair in indices.windows(2) {
                    let (a, b) = (values[pair[0]], values[pair[1]]);
                    let ordered = if order == Order::Asc { a < b } else { a > b };
                    assert!(ordered || a == b && pair[0] < pair[1] || a.is_nan() || b.is_nan(), "{a} before {b}");
                }
            }
        }
    }

    #[test]
    fn sizes_around_powers_of_two() {
        for cols in [1, 2, 3, 31, 1023, 1025, 5000] {
            check([cols, 3, 1, 1], 2, |i| ((i * 7919) % 1009) as f32 - 500.0);
        }
        check([7, 2, 3, 2], 5, |i| ((i * 31) % 64) as f32);
    }

    #[test]
    fn infinities_zeros_and_ties() {
        const VALUES: [f32; 7] = [f32::INFINITY, 0.0, f32::NEG_INFINITY, -0.0, 1.0e-45, f32::MAX, f32::MIN];
        for cols in [3, 33, 1025] {
            check([cols, 2, 1, 1], 1, |i| VALUES[i * i % 7]);
            check([cols, 2, 1, 1], 1, |_| f32::INFINITY);
            check([cols, 2, 1, 1], 1, |_| f32::NEG_INFINITY);
        }
    }

    #[test]
    fn nan_terminates_with_a_permutation() {
        check([1025, 2, 1, 1], 2, |i| if i % 3 == 0 { f32::NAN } else { i as f32 });
        check([100, 1, 1, 1], 1, |i| f32::from_bits(if i % 2 == 0 { u32::MAX } else { 0x7fff_ffff }));
    }

    #[test]
    fn more_rows_and_columns_than_sixteen_bits_count() {
        check([1, 65537, 1, 1], 3, |i| i as f32);
        check([65537, 1, 1, 1], 1, |i| -(i as f32));
    }
}
