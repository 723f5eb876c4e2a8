//! Judging rows of indices: what sorts and top-ks have in common.

use super::Failure;

/// The first place of a row that still holds poison, in words.
pub(super) fn unwritten(row: &[i32], poison: u32) -> Option<String> {
    let place = row.iter().position(|i| *i as u32 == poison)?;
    Some(format!("place {place} was never written"))
}

/// The first index of a row that is no column, or that was there before, in words. `seen` has a place for each column.
pub(super) fn outcast(row: &[i32], seen: &mut [bool]) -> Option<String> {
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

/// Rows that one check found wrong.
#[derive(Default)]
pub(super) struct Rows {
    rows: Vec<usize>,
    first: Option<String>,
}

impl Rows {
    /// Counts a row; the first one says what is wrong with it.
    pub(super) fn add(&mut self, row: usize, what: impl FnOnce() -> String) {
        self.rows.push(row);
        self.first.get_or_insert_with(what);
    }

    /// The failure of the check, if any row is wrong.
    pub(super) fn failure(self, what: &str, of: usize) -> Option<Failure> {
        let (first, last) = (*self.rows.first()?, *self.rows.last()?);
        let pattern = match self.rows.len() {
            n if n == of && of > 1 => Some("every row".to_owned()),
            1 if of > 1 => Some(format!("one row ({first})")),
            n if n > 1 && first > 0 && last + 1 - first == n && last + 1 == of => Some(format!("rows {first} and up")),
            _ => None,
        };
        Some(Failure { what: format!("{} of {of} rows {what}", self.rows.len()), worst: self.first, pattern })
    }
}
