//! Judging a top-k: never index lists, since the k best may come in any order and ties may go either way.
//!
//! Each row must have k distinct columns, and the multiset of their keys must be
//! that of the k largest. It is not enough that no key is below the k-th: copies
//! of the k-th may have displaced larger ones.

use super::Findings;
use super::rows::Rule;

/// Judges `k` indices for each row of `cols` keys. A row with a NaN key must have distinct columns; which is free.
pub fn judge_best(keys: &[f32], cols: usize, k: usize, output: &[u8], poison: u32) -> Findings {
    let rule = Rule {
        keys,
        cols,
        indices: k,
        distinct: ("distinct", "have an index twice or out of range"),
        chosen: ("best", "do not have the largest keys"),
        free: "every row has a NaN: any distinct columns are right",
    };
    rule.judge(output, poison, |keys, row, seen| {
        let (missed, taken) = displaced(keys, row, seen)?;
        let key = |i: usize| format!("{:e} (index {i})", keys[i]);
        Some(format!("{} is left out, {} is taken", key(missed), key(taken)))
    })
}

/// The columns of the `k` largest keys, largest first; of equal ones the first.
pub fn largest(keys: &[f32], k: usize) -> Vec<usize> {
    let mut columns: Vec<usize> = (0..keys.len()).collect();
    let larger = |a: &usize, b: &usize| rank(keys[*b]).total_cmp(&rank(keys[*a])).then(a.cmp(b));
    if k < columns.len() {
        columns.select_nth_unstable_by(k, larger);
        columns.truncate(k);
    }
    columns.sort_unstable_by(larger);
    columns
}

/// A key for a total order in which both zeros are equal.
fn rank(key: f32) -> f32 {
    key + 0.0
}

/// Where the chosen keys are not the largest: a column that is missing, and a lesser one in its place.
/// `chosen` is distinct, and `seen` has its columns marked.
fn displaced(keys: &[f32], chosen: &[i32], seen: &[bool]) -> Option<(usize, usize)> {
    let right = largest(keys, chosen.len());
    let mut chosen: Vec<usize> = chosen.iter().map(|i| *i as usize).collect();
    chosen.sort_unstable_by(|a, b| rank(keys[*b]).total_cmp(&rank(keys[*a])));
    let (want, taken) = right.into_iter().zip(chosen).find(|(want, got)| rank(keys[*want]) != rank(keys[*got]))?;
    // The chosen have fewer keys as large as the wanted one than there are.
    let missed = (0..keys.len()).find(|i| !seen[*i] && rank(keys[*i]) == rank(keys[want])).unwrap_or(want);
    Some((missed, taken))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::POISONS;

    fn failed(keys: &[f32], cols: usize, indices: &[i32]) -> Vec<String> {
        let bytes: Vec<u8> = indices.iter().flat_map(|i| i.to_le_bytes()).collect();
        let k = indices.len() / (keys.len() / cols);
        let f = judge_best(keys, cols, k, &bytes, POISONS[0]);
        let failures = f.checks.iter().filter_map(|c| Some((&c.name, c.failure()?)));
        failures.map(|(name, f)| format!("{name}: {}", f.worst.as_deref().unwrap_or(""))).collect()
    }

    #[test]
    fn right_answers_pass() {
        let none: [String; 0] = [];
        assert_eq!(failed(&[3.0, 1.0, 2.0], 3, &[0]), none);
        // Any order, any of the ties, any zero, infinities as numbers, k = c; NaN rows as any distinct columns.
        assert_eq!(failed(&[3.0, 1.0, 2.0], 3, &[2, 0]), none);
        assert_eq!(failed(&[1.0, 2.0, 1.0, 1.0], 4, &[3, 1]), none);
        assert_eq!(failed(&[0.0, -0.0, -1.0], 3, &[1]), none);
        assert_eq!(failed(&[-0.0, 0.0, -1.0], 3, &[0]), none);
        assert_eq!(failed(&[f32::NEG_INFINITY, f32::INFINITY, f32::NEG_INFINITY], 3, &[2, 1]), none);
        assert_eq!(failed(&[3.0, 1.0, 2.0, 6.0, 5.0, 4.0], 3, &[1, 2, 0, 0, 1, 2]), none);
        assert_eq!(failed(&[f32::NAN, 1.0, 2.0], 3, &[1]), none);
    }

    #[test]
    fn every_check_can_fail() {
        let keys = [3.0, 1.0, 2.0, 2.0];
        let poison = POISONS[0] as i32;
        for (indices, want) in [
            (&[1, 0][..], "best: row 0, 2e0 (index 2) is left out, 1e0 (index 1) is taken"),
            // A copy of the k-th value displaces a larger one, though no value is below the k-th.
            (&[3, 2], "best: row 0, 3e0 (index 0) is left out, 2e0 (index 3) is taken"),
            (&[0, 0], "distinct: row 0, place 1: index 0 is there a second time"),
            (&[0, 4], "distinct: row 0, place 1: index 4 is not in 0..4"),
            (&[-1, 0], "distinct: row 0, place 0: index -1 is not in 0..4"),
            (&[0, poison], "written: row 0, place 1 was never written"),
        ] {
            assert_eq!(failed(&keys, 4, indices), [want]);
        }
        assert_eq!(failed(&[1.0, f32::NAN], 2, &[0, 0]).len(), 1);
        assert_eq!(
            failed(&[0.0, 1.0, 0.0, 1.0], 2, &[1, 0]),
            ["best: row 1, 1e0 (index 1) is left out, 0e0 (index 0) is taken"]
        );
    }
}
