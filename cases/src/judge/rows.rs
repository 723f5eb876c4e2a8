//! Judging rows of indices: what sorts and top-ks have in common.

use super::{Check, Failure, Findings};
use crate::formats::read_i32;

/// What one op's rows must be.
pub(super) struct Rule<'a> {
    /// Keys, row after row.
    pub(super) keys: &'a [f32],
    /// Keys of a row.
    pub(super) cols: usize,
    /// Indices of a row.
    pub(super) indices: usize,
    /// The check that indices are distinct columns: its name, and what rows that fail it do.
    pub(super) distinct: (&'static str, &'static str),
    /// The check of the keys that the indices name: its name, and what rows that fail it do.
    pub(super) chosen: (&'static str, &'static str),
    /// Why `chosen` says nothing about a row with a NaN.
    pub(super) free: &'static str,
}

impl Rule<'_> {
    /// Judges every row. `wrong` gets the keys and the indices, which are distinct columns, and the columns that are
    /// among them; it says what is wrong with the row, if anything is.
    pub(super) fn judge(
        &self,
        output: &[u8],
        poison: u32,
        wrong: impl Fn(&[f32], &[i32], &[bool]) -> Option<String>,
    ) -> Findings {
        let indices: Vec<i32> = read_i32(output).collect();
        let (mut unwritten, mut repeated, mut badly_chosen) = (Rows::default(), Rows::default(), Rows::default());
        let mut seen = vec![false; self.cols];
        let rows = self.keys.chunks_exact(self.cols).zip(indices.chunks_exact(self.indices));
        for (r, (keys, row)) in rows.enumerate() {
            let not_written = not_written(row, poison);
            unwritten.judge(r, not_written.is_some(), || not_written.unwrap_or_default());
            if unwritten.last_is(r) {
                continue;
            }
            let outcast = outcast(row, &mut seen);
            repeated.judge(r, outcast.is_some(), || outcast.unwrap_or_default());
            if repeated.last_is(r) || keys.iter().any(|key| key.is_nan()) {
                continue;
            }
            let what = wrong(keys, row, &seen);
            badly_chosen.judge(r, what.is_some(), || what.unwrap_or_default());
        }
        let chosen = match badly_chosen.judged.len() {
            0 => Check::not_possible(self.chosen.0, self.free),
            _ => Check::from_failure(self.chosen.0, badly_chosen.failure(self.chosen.1)),
        };
        let checks = vec![
            Check::from_failure("written", unwritten.failure("were not written whole")),
            Check::from_failure(self.distinct.0, repeated.failure(self.distinct.1)),
            chosen,
        ];
        Findings { checks, metrics: None }
    }
}

/// The first place of a row that still holds poison, in words.
fn not_written(row: &[i32], poison: u32) -> Option<String> {
    let place = row.iter().position(|i| *i as u32 == poison)?;
    Some(format!("place {place} was never written"))
}

/// The first index of a row that is no column, or that was there before, in words. `seen` has a place for each column.
fn outcast(row: &[i32], seen: &mut [bool]) -> Option<String> {
    seen.fill(false);
    let cols = seen.len();
    row.iter().enumerate().find_map(|(place, i)| match usize::try_from(*i).ok().filter(|i| *i < cols) {
        None => Some(format!("place {place}: index {i} is not in 0..{cols}")),
        Some(at) if std::mem::replace(&mut seen[at], true) => {
            Some(format!("place {place}: index {at} is there a second time"))
        }
        Some(_) => None,
    })
}

/// Rows that one check has looked at, and those that it found wrong.
#[derive(Default)]
struct Rows {
    judged: Vec<usize>,
    wrong: Vec<usize>,
    first: Option<String>,
}

impl Rows {
    /// Counts a row; the first wrong one says what is wrong with it.
    fn judge(&mut self, row: usize, is_wrong: bool, what: impl FnOnce() -> String) {
        self.judged.push(row);
        if is_wrong {
            self.wrong.push(row);
            self.first.get_or_insert_with(|| format!("row {row}, {}", what()));
        }
    }

    /// Whether this row was the last wrong one.
    fn last_is(&self, row: usize) -> bool {
        self.wrong.last() == Some(&row)
    }

    /// The failure of the check, if any row is wrong.
    fn failure(self, what: &str) -> Option<Failure> {
        let first = *self.wrong.first()?;
        let of = self.judged.len();
        let from_first = self.judged.iter().filter(|row| **row >= first).count();
        let pattern = match self.wrong.len() {
            n if n == of && of > 1 => Some("every row".to_owned()),
            1 if of > 1 => Some(format!("one row ({first})")),
            n if n > 1 && n == from_first => Some(format!("rows {first} and up")),
            _ => None,
        };
        Some(Failure { what: format!("{} of {of} rows {what}", self.wrong.len()), worst: self.first, pattern })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that could not be judged do not count as right ones, nor as wrong ones.
    #[test]
    fn patterns_are_of_judged_rows() {
        let pattern = |judged: &[usize], wrong: &[usize]| {
            let mut rows = Rows::default();
            judged.iter().for_each(|r| rows.judge(*r, wrong.contains(r), String::new));
            rows.failure("are wrong").and_then(|f| f.pattern)
        };
        assert_eq!(pattern(&[1, 2, 3, 4, 5], &[3, 4]), None);
        assert_eq!(pattern(&[1, 2, 3, 4], &[3, 4]).as_deref(), Some("rows 3 and up"));
        assert_eq!(pattern(&[1, 3], &[1, 3]).as_deref(), Some("every row"));
        assert_eq!(pattern(&[0, 2], &[2]).as_deref(), Some("one row (2)"));
        assert_eq!(pattern(&[0, 2], &[]), None);
    }
}
