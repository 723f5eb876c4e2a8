//! What a case unfolds to: tensors, steps, and where their bytes lie in shared memory.
//!
//! A plan is plain data. It travels to workers as JSON, so a worker in another
//! language needs no knowledge of ids or generators.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::formats::ElemType;
use crate::llama::calls::Call;

/// Tensors, host memory and steps of one case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The case id, for logs.
    pub case: String,
    /// All tensors; steps name them by position.
    pub tensors: Vec<Tensor>,
    /// Memory of the host that steps move bytes from and to; they name it by position.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buffers: Vec<Buffer>,
    /// Operations in execution order.
    pub steps: Vec<Step>,
    /// Whatever a device keeps of sorted slots it makes anew for each step that needs it. Without this it may use it again
    /// where ids and experts are the same; a device that keeps nothing has nothing to do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fresh_routing: bool,
}

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Expert weights: an input that a backend may keep in another layout.
    Weights,
    /// Any other input.
    Input,
    /// Written by a step.
    Output,
    /// A view of another tensor's allocation: it has no memory of its own. What a step reads through it is what that
    /// tensor holds, an output of an earlier step say.
    View {
        /// The tensor that has the memory: no view itself, of the same type and allocation.
        of: usize,
    },
}

/// A tensor: a box cut out of a contiguous allocation, its parent.
///
/// Shapes list the fastest dimension first and have four dimensions. A tensor
/// that is no view has `start` zero and `shape` equal to `parent`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Name in messages and dumps.
    pub name: String,
    /// Element type.
    #[serde(rename = "type")]
    pub ty: ElemType,
    /// Shape of the allocation, in elements.
    pub parent: [usize; 4],
    /// First element of the view in the parent, per dimension (whole blocks in the first).
    pub start: [usize; 4],
    /// Shape of the view, in elements.
    pub shape: [usize; 4],
    /// What it is for.
    pub role: Role,
}

/// A run of bytes in the host's memory, beside the tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// Name in messages and dumps.
    pub name: String,
    /// Length.
    pub bytes: usize,
    /// True if its bytes are given with the inputs; else steps write it, and what they wrote is left behind.
    pub is_given: bool,
}

/// Where pieces of equal size lie: the i-th at `at + i·stride`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The first byte.
    pub at: usize,
    /// Distance from one piece to the next.
    pub stride: usize,
}

/// Pieces of equal size that move between a tensor's allocation and something else. Each piece is one transfer for a
/// device that moves nothing but runs of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The tensor.
    pub tensor: usize,
    /// Where the pieces lie in the tensor's allocation.
    pub here: Place,
    /// Where they lie on the other side.
    pub there: Place,
    /// Bytes of a piece.
    pub size: usize,
    /// Number of pieces.
    pub count: usize,
}

impl Place {
    /// One piece.
    pub fn at(at: usize) -> Self {
        Place { at, stride: 0 }
    }

    /// The end of the last of `count` pieces of `size` bytes; `None` where it overflows.
    fn end(self, size: usize, count: usize) -> Option<usize> {
        count.saturating_sub(1).checked_mul(self.stride)?.checked_add(self.at)?.checked_add(size)
    }
}

impl Part {
    /// True if all pieces lie within so many bytes of the tensor and of the other side.
    pub fn fits(&self, tensor: usize, other: usize) -> bool {
        let fits = |place: Place, bytes| place.end(self.size, self.count).is_some_and(|end| end <= bytes);
        fits(self.here, tensor) && fits(self.there, other)
    }

    /// The offset of each piece: in the tensor and on the other side.
    pub fn pieces(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let Part { here, there, count, .. } = *self;
        (0..count).map(move |i| (here.at + i * here.stride, there.at + i * there.stride))
    }

    /// Bytes of all pieces.
    pub fn bytes(&self) -> usize {
        self.size * self.count
    }
}

/// Sort direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Smallest first.
    Asc,
    /// Largest first.
    Desc,
}

/// One operation; the numbers are positions in [`Plan::tensors`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// `out[:, e, t] = weights[:, :, ids[e, t]]ᵀ · x[:, e mod b, t]`, with weights `[k, m, experts]`, x `[k, b, n]` f32,
    /// ids `[used, n]` i32, out `[m, used, n]` f32. A slot whose id is outside `0..experts` leaves its output row untouched.
    MulMatId {
        /// Expert weights.
        weights: usize,
        /// Activations.
        x: usize,
        /// Expert of each slot.
        ids: usize,
        /// Result.
        out: usize,
    },
    /// For each row of x `[cols, ..]` f32 the permutation (i32) that sorts it; equal keys in any order.
    Argsort {
        /// Rows to sort.
        x: usize,
        /// Indices.
        out: usize,
        /// Direction.
        order: Order,
    },
    /// For each row of x `[cols, ..]` f32 the indices of its k largest keys, in any order: out `[k, ..]` i32. Of equal
    /// keys any will do.
    TopK {
        /// Rows to choose from.
        x: usize,
        /// Indices; its first dimension is k.
        out: usize,
    },
    /// Copies bytes from one tensor's allocation to others', inside the device: `there` is in `from`, `here` in the
    /// tensor that the part names. The work is queued and not waited for: whatever comes after must see it done.
    Copy {
        /// Read.
        from: usize,
        /// What goes where.
        parts: Vec<Part>,
    },
    /// Writes bytes of host memory to tensors. The memory is scribbled over and freed as soon as the device says that
    /// it is done.
    Upload {
        /// The buffer; `there` is in it.
        from: usize,
        /// What goes where.
        parts: Vec<Part>,
    },
    /// Reads bytes of tensors into host memory.
    Fetch {
        /// The buffer; `there` is in it.
        to: usize,
        /// What comes from where.
        parts: Vec<Part>,
    },
    /// Loads a model into the build's own libllama and calls it: a record in the log for each call.
    Llama {
        /// The buffer with the model, a GGUF file.
        model: usize,
        /// The buffer that gets the [records](crate::llama::calls).
        log: usize,
        /// What is called, in order.
        calls: Vec<Call>,
    },
    /// Fills a tensor's allocation with a byte.
    Fill {
        /// Written.
        tensor: usize,
        /// With this.
        byte: u8,
    },
}

impl Step {
    /// Every tensor that the step names.
    pub fn tensors(&self) -> Vec<usize> {
        let of_parts = |parts: &[Part]| parts.iter().map(|p| p.tensor).collect();
        match self {
            Step::MulMatId { weights, x, ids, out } => vec![*weights, *x, *ids, *out],
            Step::Argsort { x, out, .. } | Step::TopK { x, out } => vec![*x, *out],
            Step::Copy { from, parts } => [vec![*from], of_parts(parts)].concat(),
            Step::Upload { parts, .. } | Step::Fetch { parts, .. } => of_parts(parts),
            Step::Fill { tensor, .. } => vec![*tensor],
            Step::Llama { .. } => Vec::new(),
        }
    }

    /// True if the step only moves bytes: it has no kernel, and no output of its own.
    pub fn moves_bytes(&self) -> bool {
        matches!(self, Step::Copy { .. } | Step::Upload { .. } | Step::Fetch { .. } | Step::Fill { .. })
    }
}

impl Plan {
    /// The tensor that has a tensor's memory: itself, unless it is a view of another.
    pub fn allocation(&self, tensor: usize) -> usize {
        match self.tensors.get(tensor).map(|t| t.role) {
            Some(Role::View { of }) => of,
            _ => tensor,
        }
    }

    /// More than one step that computes something.
    pub fn has_several_operations(&self) -> bool {
        self.steps.iter().filter(|step| !step.moves_bytes()).count() > 1
    }

    /// Operations that a device is given in one go: more than one can be run one by one as well.
    pub fn has_several_operations_in_a_row(&self) -> bool {
        self.steps.windows(2).any(|pair| pair.iter().all(|step| !step.moves_bytes()))
    }
}

impl Tensor {
    /// A tensor that is its whole allocation.
    pub fn whole(name: &str, ty: ElemType, shape: [usize; 4], role: Role) -> Self {
        Tensor { name: name.to_owned(), ty, parent: shape, start: [0; 4], shape, role }
    }

    /// True if its bytes are given with the inputs.
    pub fn is_input(&self) -> bool {
        matches!(self.role, Role::Weights | Role::Input)
    }

    /// True if steps write it.
    pub fn is_output(&self) -> bool {
        self.role == Role::Output
    }

    /// The same tensor with a margin in each dimension `d` where `margins[d]` is set: one unit before it and one after.
    /// The unit is a block in the first dimension and an element elsewhere.
    #[must_use]
    pub fn with_margins(mut self, margins: [bool; 4]) -> Self {
        for (d, wanted) in margins.into_iter().enumerate() {
            if wanted {
                let unit = if d == 0 { self.ty.block_len() } else { 1 };
                self.start[d] += unit;
                self.parent[d] += 2 * unit;
            }
        }
        self
    }

    /// Elements of the view.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of the whole allocation.
    pub fn parent_bytes(&self) -> usize {
        self.parent_row_bytes() * self.parent_rows()
    }

    /// Bytes of one row of the allocation.
    pub fn parent_row_bytes(&self) -> usize {
        self.ty.row_bytes(self.parent[0])
    }

    /// Rows of the allocation: everything but the first dimension.
    pub fn parent_rows(&self) -> usize {
        self.parent[1..].iter().product()
    }

    /// Distance in bytes between neighbours in each dimension (between blocks in the first).
    pub fn strides(&self) -> [usize; 4] {
        let row = self.parent_row_bytes();
        [self.ty.block_bytes(), row, row * self.parent[1], row * self.parent[1] * self.parent[2]]
    }

    /// Byte offset of the view's first block in its allocation.
    pub fn offset(&self) -> usize {
        let s = self.strides();
        self.start[0] / self.ty.block_len() * s[0] + self.start[1] * s[1] + self.start[2] * s[2] + self.start[3] * s[3]
    }

    /// Bytes of one row of the view.
    pub fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.shape[0])
    }

    /// Where row (i1, i2, i3) of the view lies in the allocation.
    pub fn row_range(&self, at: [usize; 3]) -> Range<usize> {
        let s = self.strides();
        let from = self.offset() + at[0] * s[1] + at[1] * s[2] + at[2] * s[3];
        from..from + self.row_bytes()
    }

    /// The coordinates in the view of a row of the allocation, or `None` where the row lies in a margin.
    pub fn view_row(&self, parent_row: usize) -> Option<[usize; 3]> {
        let mut rest = parent_row;
        let mut at = [0; 3];
        for (d, a) in at.iter_mut().enumerate() {
            let here = rest % self.parent[d + 1];
            rest /= self.parent[d + 1];
            *a = here.checked_sub(self.start[d + 1]).filter(|v| *v < self.shape[d + 1])?;
        }
        Some(at)
    }

    /// True if the view is the whole allocation.
    pub fn is_contiguous(&self) -> bool {
        self.parent == self.shape
    }
}

/// Where a case's bytes lie in its two shared files: inputs (read-only for workers) and results (left behind by one worker).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Per tensor: offset of its allocation in the input file, for inputs.
    pub source: Vec<Option<usize>>,
    /// Per run, per tensor: offset of its allocation in the result file, for outputs.
    pub results: Vec<Vec<Option<usize>>>,
    /// Per tensor: offset in the result file of an input as read back after the last run.
    pub readback: Vec<Option<usize>>,
    /// Per tensor: offset in the result file of an input's numbers, for inputs of a type that only a build can decode.
    /// They are the f32 values of the view, row after row: `shape[0]` values a row, rows in the order of dimensions 1,
    /// 2 and 3.
    pub decoded: Vec<Option<usize>>,
    /// Per buffer: offset in the input file, for those whose bytes are given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given: Vec<Option<usize>>,
    /// Per run, per buffer: offset in the result file, for those that steps write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<Vec<Option<usize>>>,
    /// Length of the input file in bytes.
    pub input_bytes: usize,
    /// Length of the result file in bytes.
    pub result_bytes: usize,
}

impl Layout {
    /// Allocations start at multiples of this, so that a mapped input can be handed to any API as it is.
    pub const ALIGN: usize = 256;

    /// Lays out a plan that is executed `runs` times.
    pub fn new(plan: &Plan, runs: usize) -> Self {
        let mut input_bytes = 0;
        let mut result_bytes = 0;
        let place_bytes = |wanted: bool, end: &mut usize, bytes: usize| {
            wanted.then(|| {
                let at = *end;
                *end = (at + bytes).next_multiple_of(Self::ALIGN);
                at
            })
        };
        let place = |wanted: bool, end: &mut usize, t: &Tensor| place_bytes(wanted, end, t.parent_bytes());
        let source = plan.tensors.iter().map(|t| place(t.is_input(), &mut input_bytes, t)).collect();
        let results = (0..runs)
            .map(|_| plan.tensors.iter().map(|t| place(t.is_output(), &mut result_bytes, t)).collect())
            .collect();
        let readback = plan.tensors.iter().map(|t| place(t.is_input(), &mut result_bytes, t)).collect();
        let is_decoded = |t: &Tensor| t.is_input() && t.ty.is_decoded_by_build();
        let numbers = |t| place_bytes(is_decoded(t), &mut result_bytes, 4 * t.elements());
        let decoded = plan.tensors.iter().map(numbers).collect();
        let buffers = || plan.buffers.iter();
        let given = buffers().map(|b| place_bytes(b.is_given, &mut input_bytes, b.bytes)).collect();
        let mut left: Vec<Vec<_>> = Vec::new();
        if !plan.buffers.is_empty() {
            let mut of_run = |_| buffers().map(|b| place_bytes(!b.is_given, &mut result_bytes, b.bytes)).collect();
            left.extend((0..runs).map(&mut of_run));
        }
        Layout { source, results, readback, decoded, given, left, input_bytes, result_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> Tensor {
        Tensor::whole("w", ElemType::Q4_0, [64, 3, 2, 1], Role::Weights).with_margins([true, true, false, false])
    }

    #[test]
    fn view_geometry() {
        let t = view();
        assert_eq!(t.parent, [128, 5, 2, 1]);
        assert_eq!(t.strides(), [18, 72, 360, 720]);
        assert_eq!(t.offset(), 18 + 72);
        assert_eq!(t.row_range([2, 1, 0]), 18 + 72 + 2 * 72 + 360..18 + 72 + 2 * 72 + 360 + 36);
        assert_eq!(t.parent_bytes(), 720);
        assert!(!t.is_contiguous());
    }

    #[test]
    fn view_row_inverts_row_range() {
        let t = view();
        let rows: Vec<_> = (0..t.parent_rows()).filter_map(|r| t.view_row(r).map(|at| (r, at))).collect();
        assert_eq!(rows.len(), 3 * 2);
        for (r, at) in rows {
            assert_eq!(t.row_range(at).start, r * t.parent_row_bytes() + 18);
        }
    }

    #[test]
    fn layout_keeps_everything_apart() {
        let plan = Plan {
            case: String::new(),
            tensors: vec![view(), Tensor::whole("o", ElemType::F32, [5, 1, 1, 1], Role::Output)],
            steps: vec![],
            ..Plan::default()
        };
        let l = Layout::new(&plan, 2);
        assert_eq!((l.source[0], l.source[1], l.input_bytes), (Some(0), None, 768));
        assert_eq!((l.results[0][1], l.results[1][1], l.readback[0]), (Some(0), Some(256), Some(512)));
        assert_eq!((l.result_bytes, l.decoded[0]), (512 + 768, None));
    }

    #[test]
    fn numbers_of_a_view_have_a_place() {
        let mut w = view();
        (w.ty, w.parent, w.start, w.shape) = (ElemType::Iq4Nl, [128, 5, 2, 1], [32, 1, 0, 0], [64, 3, 2, 1]);
        let plan = Plan { case: String::new(), tensors: vec![w], steps: vec![], ..Plan::default() };
        let l = Layout::new(&plan, 1);
        assert_eq!((l.decoded[0], l.result_bytes), (Some(768), 768 + 1536));
    }
}
