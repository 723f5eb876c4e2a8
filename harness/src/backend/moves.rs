//! How pieces become transfers, for every device that queues them.

use conform_cases::plan::{Part, Place};

use super::DeviceError;

/// The transfers of some parts, in order: each has one piece, or pieces that do not touch each other on either side and
/// so are one rectangle of rows. Pieces that adjoin on both sides are one; a part of no bytes is none.
pub(super) fn transfers(parts: &[Part]) -> impl Iterator<Item = Part> + '_ {
    parts.iter().filter(|p| p.bytes() > 0).flat_map(|part| {
        let whole = match *part {
            p if is_run(&p) => Part { size: p.bytes(), count: 1, ..p },
            p if p.here.stride >= p.size && p.there.stride >= p.size => p,
            p => return Pieces::Each(pieces(p)),
        };
        Pieces::Whole(std::iter::once(whole))
    })
}

/// Groups of transfers that lie side by side: as many rows equally far apart, none of which reaches into the next row of
/// another. Where they are moved row by row, what follows on both sides is moved next.
pub(super) fn columns(transfers: &[Part]) -> impl Iterator<Item = &[Part]> {
    let mut rest = transfers;
    std::iter::from_fn(move || {
        let first = rest.first()?;
        let joined = rest.windows(2).take_while(|pair| is_beside(first, &pair[0], &pair[1])).count();
        let (group, more) = rest.split_at(joined + 1);
        rest = more;
        Some(group)
    })
}

fn is_beside(first: &Part, a: &Part, b: &Part) -> bool {
    let side = |f: Place, a_end: usize, b: Place, b_end: usize| {
        f.stride == b.stride && a_end <= b.at && b_end <= f.at + f.stride
    };
    (first.tensor, first.count) == (b.tensor, b.count)
        && side(first.here, a.here.at + a.size, b.here, b.here.at + b.size)
        && side(first.there, a.there.at + a.size, b.there, b.there.at + b.size)
}

/// Each piece of a part as a part of its own.
pub(super) fn pieces(part: Part) -> impl Iterator<Item = Part> {
    part.pieces().map(move |(here, there)| {
        let (mut one, count) = (part, 1);
        (one.here.at, one.there.at, one.count) = (here, there, count);
        one
    })
}

enum Pieces<A, B> {
    Whole(A),
    Each(B),
}

impl<A: Iterator<Item = Part>, B: Iterator<Item = Part>> Iterator for Pieces<A, B> {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        match self {
            Pieces::Whole(one) => one.next(),
            Pieces::Each(all) => all.next(),
        }
    }
}

/// True if all pieces together are one run of bytes on both sides.
pub(super) fn is_run(part: &Part) -> bool {
    part.count == 1 || (part.here.stride == part.size && part.there.stride == part.size)
}

/// Refuses a part whose tensor is not in the plan or whose pieces do not lie inside of it and the other side. `bytes` has
/// the length of a tensor's allocation.
pub(super) fn check(
    call: &str,
    part: &Part,
    bytes: impl Fn(usize) -> Option<usize>,
    other: usize,
) -> Result<(), DeviceError> {
    match bytes(part.tensor) {
        None => Err(DeviceError(format!("{call}: the plan has no tensor {}", part.tensor))),
        Some(bytes) if part.count > 0 && !part.fits(bytes, other) => Err(DeviceError(format!(
            "{call}: {part:?} does not lie inside of the tensor's {bytes} bytes and the {other} of the other side"
        ))),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(here: [usize; 2], there: [usize; 2], size: usize, count: usize) -> Part {
        let place = |[at, stride]: [usize; 2]| Place { at, stride };
        Part { tensor: 0, here: place(here), there: place(there), size, count }
    }

    #[test]
    fn pieces_are_as_few_transfers_as_can_be() {
        let made = |p: Part| transfers(&[p]).map(|t| (t.here.at, t.there.at, t.size, t.count)).collect::<Vec<_>>();
        assert_eq!(made(part([3, 5], [7, 5], 5, 4)), [(3, 7, 20, 1)], "a run");
        assert_eq!(made(part([3, 6], [7, 5], 5, 4)), [(3, 7, 5, 4)], "a rectangle");
        assert_eq!(made(part([3, 6], [7, 0], 5, 2)), [(3, 7, 5, 1), (9, 7, 5, 1)], "one source for all");
        assert_eq!(made(part([3, 0], [7, 0], 5, 1)), [(3, 7, 5, 1)]);
        assert_eq!((made(part([3, 6], [7, 6], 0, 4)), made(part([3, 6], [7, 6], 4, 0))), (vec![], vec![]));
    }

    #[test]
    fn columns_side_by_side_are_one_group() {
        let groups = |parts: &[Part]| columns(parts).map(<[Part]>::len).collect::<Vec<_>>();
        let first = part([0, 20], [7, 10], 4, 5);
        let second = part([6, 20], [11, 10], 2, 5);
        assert_eq!(groups(&[first, second, part([9, 20], [14, 10], 3, 5)]), [3]);
        for (other, why) in [
            (part([6, 20], [11, 10], 2, 4), "fewer rows"),
            (part([6, 21], [11, 10], 2, 5), "rows farther apart"),
            (part([3, 20], [11, 10], 2, 5), "bytes that the first has too"),
            (part([6, 20], [10, 10], 2, 5), "the same on the other side"),
            (part([19, 20], [11, 10], 2, 5), "it reaches into the next row"),
            (part([6, 20], [16, 10], 2, 5), "the same on the other side"),
            (Part { tensor: 1, ..second }, "another tensor"),
        ] {
            assert_eq!(groups(&[first, other]), [1, 1], "{why}");
        }
        // Runs, and nothing.
        assert_eq!(groups(&[part([0, 0], [0, 0], 4, 1), part([4, 0], [4, 0], 4, 1)]), [1, 1]);
        assert_eq!(groups(&[]), [0; 0]);
    }

    #[test]
    fn nonsense_is_refused() {
        let why = |p: Part| check("upload", &p, |t| (t == 0).then_some(16), 8).err().map(|e| e.0).unwrap_or_default();
        assert_eq!(why(part([0, 8], [0, 4], 4, 2)), "");
        assert!(why(part([0, 13], [0, 4], 4, 2)).contains("does not lie inside of the tensor's 16 bytes"));
        assert!(why(part([0, 8], [1, 4], 4, 2)).contains("the 8 of the other side"));
        assert!(why(Part { tensor: 1, ..part([0, 8], [0, 4], 4, 2) }).contains("no tensor 1"));
    }
}
