//! What transfers cover of the host's side: runs of bytes, and rectangles of runs.

use conform_cases::plan::Part;

/// Runs of equal size, equally far apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    pub(super) count: usize,
    pub(super) stride: usize,
    pub(super) at: usize,
    pub(super) size: usize,
}

impl Span {
    /// What a transfer covers there.
    pub(super) fn there(t: &Part) -> Self {
        Span { count: t.count, stride: if t.count > 1 { t.there.stride } else { 0 }, at: t.there.at, size: t.size }
    }

    /// The end of the last run.
    pub(super) fn end(&self) -> usize {
        self.at + (self.count - 1) * self.stride + self.size
    }

    /// Takes another in, if it is a run, or a rectangle of as many runs, that begins where this one ends.
    fn take(&mut self, next: &Span) -> bool {
        let adjoins = (self.count, self.stride, self.at + self.size) == (next.count, next.stride, next.at);
        // Runs that grow into the ones that follow would cover bytes twice.
        let is_taken = adjoins && (self.count == 1 || self.size + next.size <= self.stride);
        if is_taken {
            self.size += next.size;
        }
        is_taken
    }
}

/// Adds what comes next, as a rule behind the last.
pub(super) fn add(spans: &mut Vec<Span>, next: Span) {
    if !spans.last_mut().is_some_and(|last| last.take(&next)) {
        spans.push(next);
    }
}

/// The same bytes in few spans: neighbours are joined, and rows that fill their rectangle are one run. Bytes that were
/// added twice may be in two spans.
pub(super) fn few(spans: Vec<Span>) -> Vec<Span> {
    let dense = |s: Span| match s.count > 1 && s.size == s.stride {
        true => Span { count: 1, stride: 0, at: s.at, size: s.size * s.count },
        false => s,
    };
    joined(joined(spans).into_iter().map(dense).collect())
}

fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut out = Vec::new();
    spans.into_iter().for_each(|s| add(&mut out, s));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::stream::Stream;

    fn run(at: usize, size: usize) -> Span {
        rows(at, size, 0, 1)
    }

    fn rows(at: usize, size: usize, stride: usize, count: usize) -> Span {
        Span { count, stride, at, size }
    }

    /// Each byte that spans cover, as often as they do.
    fn bytes(spans: &[Span]) -> Vec<usize> {
        let of = |s: &Span| {
            let s = *s;
            (0..s.count).flat_map(move |i| (0..s.size).map(move |b| s.at + i * s.stride + b))
        };
        let mut all: Vec<usize> = spans.iter().flat_map(of).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn neighbours_are_one() {
        // Rows of a blob, one after the other.
        assert_eq!(few((0..100).map(|i| run(50 + 4 * i, 4)).collect()), [run(50, 400)]);
        // Columns of a transposed V: rectangles side by side that fill their rows.
        let columns = [rows(0, 6, 10, 5), rows(6, 4, 10, 5)];
        assert_eq!(few(columns.to_vec()), [run(0, 50)]);
        // What comes before and behind belongs to it.
        assert_eq!(few([&columns[..], &[run(50, 3), run(60, 1)]].concat()), [run(0, 53), run(60, 1)]);
        // They leave a gap in each row, or are of other rectangles.
        assert_eq!(few(columns[..1].to_vec()), columns[..1]);
        for other in [rows(6, 4, 10, 4), rows(6, 4, 11, 5), rows(6, 5, 10, 5), rows(7, 3, 10, 5), run(6, 4)] {
            assert_eq!(few(vec![columns[0], other]).len(), 2, "{other:?}");
        }
        assert_eq!(few(vec![run(0, 4), run(5, 4)]).len(), 2, "a gap");
        assert_eq!((few(vec![]), rows(3, 6, 10, 5).end()), (vec![], 49));
    }

    #[test]
    fn the_same_bytes_are_covered() {
        let mut draw = 0;
        let mut below = |n: usize| {
            draw += 1;
            Stream::new(6, 5).below(draw, n as u64) as usize
        };
        for _ in 0..500 {
            let any: Vec<Span> = (0..1 + below(12))
                .map(|_| {
                    let (size, count) = (1 + below(5), 1 + below(4));
                    rows(below(40), size, if count > 1 { size + below(4) } else { 0 }, count)
                })
                .collect();
            let mut added = Vec::new();
            any.iter().for_each(|s| add(&mut added, *s));
            let few = few(added.clone());
            assert_eq!((bytes(&added), bytes(&few)), (bytes(&any), bytes(&any)), "{any:?}");
            assert!(few.len() <= added.len() && added.len() <= any.len());
        }
    }
}
