//! What wrong elements have in common: one row, one expert, everything, a constant factor.

use std::collections::BTreeSet;
use std::fmt;

/// Coordinates of an element, each with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place(pub Vec<(&'static str, i64)>);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (axis, at)) in self.0.iter().enumerate() {
            write!(f, "{}{axis} {at}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// A wrong element.
#[derive(Clone, Copy, Debug)]
pub struct Wrong {
    /// Its position in the output.
    pub element: usize,
    /// The right value.
    pub expected: f64,
    /// The value found.
    pub got: f32,
}

/// The simplest description of the wrong elements, or `None` where none is simple.
///
/// `elements` is the size of the output, `place` gives an element's coordinates.
pub fn find(wrong: &[Wrong], elements: usize, place: &dyn Fn(usize) -> Place) -> Option<String> {
    let mut parts = Vec::new();
    if wrong.len() == 1 {
        return Some("a single element".to_owned());
    } else if wrong.len() == elements {
        parts.push("every element".to_owned());
    } else if wrong.len() * 20 >= elements * 19 {
        // A scaled output leaves the few elements alone that are nearly zero.
        parts.push("nearly every element".to_owned());
    } else {
        parts.extend(shared_coordinates(wrong, elements, place));
    }
    parts.extend(shared_value(wrong));
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Axes on which the wrong elements agree, or form the upper end.
fn shared_coordinates(wrong: &[Wrong], elements: usize, place: &dyn Fn(usize) -> Place) -> Vec<String> {
    let axes: Vec<&'static str> = place(0).0.iter().map(|(axis, _)| *axis).collect();
    let coordinates = |of: &mut dyn Iterator<Item = usize>, axis: usize| -> BTreeSet<i64> {
        of.map(|element| place(element).0[axis].1).collect()
    };
    let mut parts = Vec::new();
    for (axis, name) in axes.iter().enumerate() {
        let bad = coordinates(&mut wrong.iter().map(|w| w.element), axis);
        let all = coordinates(&mut (0..elements), axis);
        if all.len() == 1 {
            continue;
        }
        let (Some(first), Some(last)) = (bad.first(), bad.last()) else { continue };
        let all_above = all.range(first..).count() == bad.len();
        if bad.len() == 1 {
            parts.push(format!("one {name} ({first})"));
        } else if bad.len() == 2 && all.len() > 2 {
            parts.push(format!("two {name}s ({first}, {last})"));
        } else if all_above && bad.len() < all.len() && Some(last) == all.last() {
            parts.push(format!("{name}s {first} and up"));
        }
    }
    parts
}

/// What the wrong values themselves have in common.
fn shared_value(wrong: &[Wrong]) -> Option<String> {
    if wrong.iter().all(|w| w.got == 0.0) {
        return Some("all zero".to_owned());
    }
    if wrong.iter().all(|w| w.got.is_nan()) {
        return Some("all NaN".to_owned());
    }
    // The factor is read off the largest value, where rounding disturbs it least.
    let largest =
        wrong.iter().filter(|w| w.expected.is_finite()).max_by(|a, b| a.expected.abs().total_cmp(&b.expected.abs()))?;
    let factor = f64::from(largest.got) / largest.expected;
    let scaled = |w: &Wrong| (f64::from(w.got) - factor * w.expected).abs() <= 1e-4 * largest.expected.abs();
    (wrong.len() > 2 && factor.is_finite() && wrong.iter().all(scaled)).then(|| match factor {
        f if (f + 1.0).abs() < 1e-4 => "all negated".to_owned(),
        f => format!("all scaled by {f:.4}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 4 (row) x 3 (token) output whose element i is wrong where `bad` says so.
    fn pattern(bad: impl Fn(usize, usize) -> Option<f32>) -> Option<String> {
        let place = |i: usize| Place(vec![("token", (i / 4) as i64), ("row", (i % 4) as i64)]);
        let wrong: Vec<Wrong> = (0..12)
            .filter_map(|i| bad(i % 4, i / 4).map(|got| Wrong { element: i, expected: 1.0 + i as f64, got }))
            .collect();
        find(&wrong, 12, &place)
    }

    #[test]
    fn patterns() {
        let noise = |r: usize, t: usize| Some(((r * 7 + t * 5) % 11) as f32 - 3.0);
        let value = |r: usize, t: usize| 1.0 + (t * 4 + r) as f32;
        assert_eq!(pattern(noise).as_deref(), Some("every element"));
        assert_eq!(pattern(|r, t| Some(value(r, t) * 1.02)).as_deref(), Some("every element, all scaled by 1.0200"));
        assert_eq!(pattern(|r, t| Some(-value(r, t))).as_deref(), Some("every element, all negated"));
        assert_eq!(pattern(|r, t| (r == 2).then(|| noise(r, t)).flatten()).as_deref(), Some("one row (2)"));
        assert_eq!(pattern(|r, t| (t == 1).then(|| noise(r, t)).flatten()).as_deref(), Some("one token (1)"));
        assert_eq!(
            pattern(|r, t| (r == 0 || r == 2).then(|| noise(r, t)).flatten()).as_deref(),
            Some("two rows (0, 2)")
        );
        assert_eq!(pattern(|r, t| (r >= 1).then(|| noise(r, t)).flatten()).as_deref(), Some("rows 1 and up"));
        assert_eq!(pattern(|r, t| (r == 2 && t == 1).then_some(0.5)).as_deref(), Some("a single element"));
        assert_eq!(pattern(|r, _| (r != 1).then_some(0.0)).as_deref(), Some("all zero"));
        assert_eq!(pattern(|_, _| Some(f32::NAN)).as_deref(), Some("every element, all NaN"));
        assert_eq!(pattern(|r, t| (r != 1 || t != 1).then(|| noise(r, t)).flatten()), None);
    }
}
