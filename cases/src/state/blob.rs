//! The parts that all formats share: numbers, and the rows of tensors with what is said of them.

use std::ops::Range;

use super::io::{StateError, StateRead, StateWrite, refused};
use super::stages::Stages;
use super::tensor::{CacheTensor, type_number};

/// Reads little-endian numbers, with the field that each one is.
pub(super) trait Numbers {
    fn u32(&mut self, field: &dyn Fn() -> String) -> Result<u32, StateError>;
    fn i32(&mut self, field: &dyn Fn() -> String) -> Result<i32, StateError>;
    fn u64(&mut self, field: &dyn Fn() -> String) -> Result<u64, StateError>;

    /// A number that must be this one.
    fn expect_u32(&mut self, field: &dyn Fn() -> String, want: u32) -> Result<(), StateError>;

    /// A number that is at most this one: looked at before anything is allocated by it.
    fn at_most(&mut self, field: &dyn Fn() -> String, most: usize, of: &str) -> Result<usize, StateError>;
}

impl Numbers for dyn StateRead + '_ {
    fn u32(&mut self, field: &dyn Fn() -> String) -> Result<u32, StateError> {
        let bytes = self.read(field, 4)?;
        Ok(bytes.try_into().map_or(0, u32::from_le_bytes))
    }

    fn i32(&mut self, field: &dyn Fn() -> String) -> Result<i32, StateError> {
        Ok(self.u32(field)?.cast_signed())
    }

    fn u64(&mut self, field: &dyn Fn() -> String) -> Result<u64, StateError> {
        let bytes = self.read(field, 8)?;
        Ok(bytes.try_into().map_or(0, u64::from_le_bytes))
    }

    fn expect_u32(&mut self, field: &dyn Fn() -> String, want: u32) -> Result<(), StateError> {
        let at = self.bytes();
        match self.u32(field)? {
            got if got == want => Ok(()),
            got => Err(refused(field, at, format!("the blob has {got}, this memory {want}"))),
        }
    }

    fn at_most(&mut self, field: &dyn Fn() -> String, most: usize, of: &str) -> Result<usize, StateError> {
        let at = self.bytes();
        let got = self.u32(field)?;
        match usize::try_from(got) {
            Ok(number) if number <= most => Ok(number),
            _ => Err(refused(field, at, format!("the blob has {got}, this memory {most} {of}"))),
        }
    }
}

/// The rows of some cells in tensors of two kinds: K and V, or R and S.
pub(super) struct Rows<'a> {
    /// Half of them of one kind, then half of the other.
    pub(super) tensors: &'a [CacheTensor],
    /// The second kind is stored transposed.
    pub(super) transposed: bool,
    /// Name of that flag.
    pub(super) flag: &'static str,
    /// Layers that are counted and have no rows.
    pub(super) others: usize,
    /// The stream that the cells are of.
    pub(super) stream: usize,
    /// Which cells, in the order of the blob.
    pub(super) cells: &'a [usize],
}

impl Rows<'_> {
    fn layers(&self) -> u32 {
        (self.tensors.len() / 2 + self.others) as u32
    }

    /// Flag, number of layers, then for each tensor what its rows are, and the rows.
    pub(super) fn write(&self, to: &mut dyn StateWrite, stages: &Stages) {
        to.write(&u32::from(self.transposed).to_le_bytes());
        to.write(&self.layers().to_le_bytes());
        let runs = (stages.runs)(self.cells);
        for t in self.tensors {
            to.write(&type_number(t.ty).to_le_bytes());
            if t.transposed {
                to.write(&(t.element_bytes() as u32).to_le_bytes());
                to.write(&(t.embd as u32).to_le_bytes());
            } else {
                to.write(&(t.row_bytes() as u64).to_le_bytes());
            }
            for part in self.parts(t, &runs, stages) {
                to.write_tensor(part);
            }
            to.advance(self.cells.len() * t.row_bytes());
        }
    }

    /// The pieces of all runs; the other side is counted from the first byte of the rows.
    fn parts<'a>(
        &self,
        t: &'a CacheTensor,
        runs: &'a [Range<usize>],
        stages: &'a Stages,
    ) -> impl Iterator<Item = crate::plan::Part> + 'a {
        let (stream, cells) = (self.stream, self.cells.len());
        let unit = if t.transposed { t.element_bytes() } else { t.row_bytes() };
        let mut before = 0;
        runs.iter().map(move |run| {
            let there = before * unit;
            before += run.len();
            (stages.part)(t, stream, run.clone(), there, cells * unit)
        })
    }

    /// Reads the same, refuses what does not fit this memory, and records the transfers of the rows.
    pub(super) fn read(&self, from: &mut dyn StateRead, stages: &Stages) -> Result<(), StateError> {
        from.expect_u32(&|| self.flag.to_owned(), u32::from(self.transposed))?;
        from.expect_u32(&|| "layers".to_owned(), self.layers())?;
        let runs = (stages.runs)(self.cells);
        for t in self.tensors {
            let field = |what: &str| format!("{} {what}", t.name);
            let at = from.bytes();
            let (got, want) = (from.i32(&|| field("type"))?, type_number(t.ty));
            if got != want {
                let what = format!("the blob has type {got}, this memory {want} ({})", t.ty);
                return Err(refused(|| field("type"), at, what));
            }
            if t.transposed {
                from.expect_u32(&|| field("element size"), t.element_bytes() as u32)?;
                from.expect_u32(&|| field("elements of a row"), t.embd as u32)?;
            } else {
                let at = from.bytes();
                let (got, want) = (from.u64(&|| field("row size"))?, t.row_bytes() as u64);
                if got != want {
                    return Err(refused(|| field("row size"), at, format!("the blob has {got}, this memory {want}")));
                }
            }
            for part in self.parts(t, &runs, stages) {
                from.read_tensor(part);
            }
            from.advance(&|| field("rows"), self.cells.len() * t.row_bytes())?;
        }
        Ok(())
    }
}
