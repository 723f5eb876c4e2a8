//! Judging sorts: never index lists, since ties may go in any order.
//!
//! Each row must be a permutation, and the keys taken in that order must be
//! monotone. With distinct keys that implies the exact answer.

use super::Findings;
use super::rows::Rule;
use crate::plan::Order;

/// Judges rows of `cols` indices. A row with a NaN key must be a permutation; its order is free.
pub fn judge_sort(keys: &[f32], cols: usize, order: Order, output: &[u8], poison: u32) -> Findings {
    let rule = Rule {
        keys,
        cols,
        indices: cols,
        distinct: ("permutation", "are no permutation"),
        chosen: ("order", "are out of order"),
        free: "every row has a NaN: any permutation is right",
    };
    rule.judge(output, poison, |keys, row, _| {
        let key = |place: usize| keys[row[place] as usize];
        let inverted = |place: &usize| match order {
            Order::Asc => key(*place) > key(place + 1),
            Order::Desc => key(*place) < key(place + 1),
        };
        let place = (0..cols - 1).find(inverted)?;
        let named = |place: usize| format!("{:e} (index {})", key(place), row[place]);
        Some(format!("place {place}: {} before {}", named(place), named(place + 1)))
    })
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
