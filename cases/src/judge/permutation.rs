//! Judging sorts: never index lists, since ties may go in any order.
//!
//! Each row must be a permutation, and the keys taken in that order must be
//! monotone. With distinct keys that implies the exact answer.

use super::rows::{self, Rows};
use super::{Check, Findings};
use crate::formats::read_i32;
use crate::plan::Order;

/// Judges rows of `keys.len() / rows` indices. A row with a NaN key must be a permutation; its order is free.
pub fn judge_sort(keys: &[f32], cols: usize, order: Order, output: &[u8], poison: u32) -> Findings {
    let indices: Vec<i32> = read_i32(output).collect();
    let (mut unwritten, mut permutation, mut unordered) = (Rows::default(), Rows::default(), Rows::default());
    let mut free = 0;
    let mut seen = vec![false; cols];
    let count = keys.len() / cols;
    for (r, (keys, row)) in keys.chunks_exact(cols).zip(indices.chunks_exact(cols)).enumerate() {
        if let Some(c) = rows::unwritten(row, poison) {
            unwritten.add(r, || format!("row {r}, {c}"));
            continue;
        }
        if let Some(outcast) = rows::outcast(row, &mut seen) {
            permutation.add(r, || format!("row {r}, {outcast}"));
            continue;
        }
        if keys.iter().any(|k| k.is_nan()) {
            free += 1;
            continue;
        }
        let inverted = row.windows(2).position(|w| {
            let (a, b) = (keys[w[0] as usize], keys[w[1] as usize]);
            match order {
                Order::Asc => a > b,
                Order::Desc => a < b,
            }
        });
        if let Some(c) = inverted {
            let key = |c: usize| keys[row[c] as usize];
            unordered.add(r, || {
                format!(
                    "row {r}, place {c}: {:e} (index {}) before {:e} (index {})",
                    key(c),
                    row[c],
                    key(c + 1),
                    row[c + 1]
                )
            });
        }
    }
    let order_check = if free == count {
        Check::not_possible("order", "every row has a NaN: any permutation is right")
    } else {
        Check::from_failure("order", unordered.failure("are out of order", count - free))
    };
    let checks = vec![
        Check::from_failure("written", unwritten.failure("were not written whole", count)),
        Check::from_failure("permutation", permutation.failure("are no permutation", count)),
        order_check,
    ];
    Findings { checks, metrics: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::POISONS;

    fn failed(keys: &[f32], cols: usize, order: Order, indices: &[i32]) -> Vec<String> {
        let bytes: Vec<u8> = indices.iter().flat_map(|i| i.to_le_bytes()).collect();
        let f = judge_sort(keys, cols, order, &bytes, POISONS[0]);
        f.checks
            .iter()
            .filter_map(|c| c.failure().map(|f| format!("{}: {}", c.name, f.worst.as_deref().unwrap_or(""))))
            .collect()
    }

    #[test]
    fn right_answers_pass() {
        let none: [String; 0] = [];
        assert_eq!(failed(&[3.0, 1.0, 2.0], 3, Order::Asc, &[1, 2, 0]), none);
        assert_eq!(failed(&[3.0, 1.0, 2.0], 3, Order::Desc, &[0, 2, 1]), none);
        // Ties, signed zeros and infinities in any order; NaN rows as any permutation.
        assert_eq!(failed(&[1.0, 1.0], 2, Order::Asc, &[1, 0]), none);
        assert_eq!(failed(&[0.0, -0.0], 2, Order::Asc, &[0, 1]), none);
        assert_eq!(failed(&[f32::INFINITY, f32::NEG_INFINITY], 2, Order::Asc, &[1, 0]), none);
        assert_eq!(failed(&[1.0, f32::NAN, 0.0], 3, Order::Asc, &[0, 1, 2]), none);
    }

    #[test]
    fn every_check_can_fail() {
        let keys = [3.0, 1.0, 2.0];
        let poison = POISONS[0] as i32;
        for (indices, want) in [
            ([1, 0, 2], "order: row 0, place 1: 3e0 (index 0) before 2e0 (index 2)"),
            ([1, 2, 2], "permutation: row 0, place 2: index 2 is there a second time"),
            ([1, 2, 3], "permutation: row 0, place 2: index 3 is not in 0..3"),
            ([1, 2, -1], "permutation: row 0, place 2: index -1 is not in 0..3"),
            ([1, 2, poison], "written: row 0, place 2 was never written"),
        ] {
            assert_eq!(failed(&keys, 3, Order::Asc, &indices), [want]);
        }
        assert_eq!(failed(&[1.0, f32::NAN], 2, Order::Asc, &[0, 0]).len(), 1);
    }

    #[test]
    fn patterns_of_rows() {
        let keys = [0.0, 1.0].repeat(4);
        let pattern = |bad: &[usize]| {
            let indices: Vec<i32> = (0..4).flat_map(|r| if bad.contains(&r) { [1, 0] } else { [0, 1] }).collect();
            let bytes: Vec<u8> = indices.iter().flat_map(|i| i.to_le_bytes()).collect();
            let f = judge_sort(&keys, 2, Order::Asc, &bytes, POISONS[0]);
            f.checks[2].failure().unwrap().pattern.clone()
        };
        assert_eq!(pattern(&[0, 1, 2, 3]).as_deref(), Some("every row"));
        assert_eq!(pattern(&[2]).as_deref(), Some("one row (2)"));
        assert_eq!(pattern(&[2, 3]).as_deref(), Some("rows 2 and up"));
        assert_eq!(pattern(&[0, 2]), None);
    }
}
