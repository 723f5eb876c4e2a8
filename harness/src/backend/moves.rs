//! How pieces become transfers, for every device that queues them.

use conform_cases::plan::Part;

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
    use conform_cases::plan::Place;

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
    fn nonsense_is_refused() {
        let why = |p: Part| check("upload", &p, |t| (t == 0).then_some(16), 8).err().map(|e| e.0).unwrap_or_default();
        assert_eq!(why(part([0, 8], [0, 4], 4, 2)), "");
        assert!(why(part([0, 13], [0, 4], 4, 2)).contains("does not lie inside of the tensor's 16 bytes"));
        assert!(why(part([0, 8], [1, 4], 4, 2)).contains("the 8 of the other side"));
        assert!(why(Part { tensor: 1, ..part([0, 8], [0, 4], 4, 2) }).contains("no tensor 1"));
    }
}
