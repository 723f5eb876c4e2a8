//! Where the rows of a cache's cells lie in a tensor.

use std::ops::Range;

use crate::formats::ElemType;
use crate::plan::{Part, Place, Role, Tensor};

/// One tensor of a cache: a row of `embd` elements for each cell of each stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheTensor {
    /// Its position in the plan.
    pub index: usize,
    /// Name in messages: `layer 1 K`.
    pub name: String,
    /// Type of the elements.
    pub ty: ElemType,
    /// Elements of a row.
    pub embd: usize,
    /// Element `j` of cell `c` lies at `j·cells + c` of its stream, rows lie apart; else rows lie one after the other.
    pub transposed: bool,
    /// Cells of a stream.
    pub cells: usize,
    /// Streams, one after the other.
    pub streams: usize,
}

impl CacheTensor {
    /// Bytes of a cell's row.
    pub fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.embd)
    }

    /// Bytes of an element of a transposed tensor, whose types have no blocks.
    pub fn element_bytes(&self) -> usize {
        self.ty.block_bytes()
    }

    /// Bytes of one stream.
    pub fn stream_bytes(&self) -> usize {
        self.cells * self.row_bytes()
    }

    /// The rows of neighbouring cells of a stream, moved to or from `there` on the other side. `rows_apart` is the
    /// distance on the other side of the elements of a transposed row.
    pub fn part(&self, stream: usize, cells: Range<usize>, there: usize, rows_apart: usize) -> Part {
        let base = stream * self.stream_bytes();
        let (index, n) = (self.index, cells.len());
        if !self.transposed {
            let here = Place::at(base + cells.start * self.row_bytes());
            return Part { tensor: index, here, there: Place::at(there), size: n * self.row_bytes(), count: 1 };
        }
        let el = self.element_bytes();
        let here = Place { at: base + cells.start * el, stride: self.cells * el };
        Part { tensor: index, here, there: Place { at: there, stride: rows_apart }, size: n * el, count: self.embd }
    }

    /// The tensor of a plan.
    pub fn tensor(&self) -> Tensor {
        let shape = if self.transposed { [self.cells, self.embd] } else { [self.embd, self.cells] };
        let name = self.name.replace(' ', "_");
        Tensor::whole(&name, self.ty, [shape[0], shape[1], self.streams, 1], Role::Output)
    }
}

/// The number that ggml gives an element type in a blob.
pub fn type_number(ty: ElemType) -> i32 {
    match ty {
        ElemType::F32 => 0,
        ElemType::F16 => 1,
        ElemType::Q4_0 => 2,
        ElemType::Q8_0 => 8,
        ElemType::Bf16 => 30,
        ElemType::Mxfp4 => 39,
        // No cache has another type; a number that no type has is refused by every reader.
        _ => -1,
    }
}

/// Neighbouring cells as runs, in order.
pub fn runs(cells: &[usize]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for cell in cells {
        match runs.last_mut() {
            Some(run) if run.end == *cell => run.end += 1,
            _ => runs.push(*cell..*cell + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(transposed: bool) -> CacheTensor {
        CacheTensor {
            index: 3,
            name: "layer 0 V".into(),
            ty: ElemType::F16,
            embd: 4,
            transposed,
            cells: 10,
            streams: 2,
        }
    }

    #[test]
    fn rows_lie_where_the_format_says() {
        let plain = tensor(false).part(1, 2..5, 7, 0);
        assert_eq!(plain, Part { tensor: 3, here: Place::at(80 + 16), there: Place::at(7), size: 24, count: 1 });
        let transposed = tensor(true).part(1, 2..5, 7, 6);
        let (here, there) = (Place { at: 80 + 4, stride: 20 }, Place { at: 7, stride: 6 });
        assert_eq!(transposed, Part { tensor: 3, here, there, size: 6, count: 4 });
        assert_eq!(tensor(true).tensor().parent_bytes(), 160);
    }

    #[test]
    fn neighbours_are_one_run() {
        assert_eq!(runs(&[0, 1, 2, 5, 7, 8]), [0..3, 5..6, 7..9]);
        assert!(runs(&[]).is_empty());
        // After the last cell the search goes on with the first.
        assert_eq!(runs(&[8, 9, 0]), [8..10, 0..1]);
    }
}
