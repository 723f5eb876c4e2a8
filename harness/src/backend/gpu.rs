//! What our GPU backends share whatever their API is: the steps they take, checked, in the numbers of their kernels.

use conform_cases::formats::ElemType;
use conform_cases::plan::Tensor;

use super::LoadError;

/// The types of the expert kernel, in the order of their enumeration there.
pub(super) const EXPERT_TYPES: [ElemType; 10] = [
    ElemType::F32,
    ElemType::F16,
    ElemType::Bf16,
    ElemType::Q4_0,
    ElemType::Q4_1,
    ElemType::Q5_0,
    ElemType::Q5_1,
    ElemType::Q8_0,
    ElemType::Q4K,
    ElemType::Q6K,
];

/// The sizes of a `mul_mat_id` step, in the names the kernels use.
pub(super) struct Shape {
    pub(super) k: usize,
    pub(super) rows: usize,
    pub(super) experts: usize,
    pub(super) per_token: usize,
    pub(super) used: usize,
    pub(super) tokens: usize,
}

pub(super) fn unsupported<T>(why: String) -> Result<T, LoadError> {
    Err(LoadError::Unsupported(why))
}

impl Shape {
    /// Refuses what the kernels do not take. Slots are sorted into tiles of `tile_slots`.
    pub(super) fn new([w, x, ids, out]: [&Tensor; 4], tile_slots: usize) -> Result<Self, LoadError> {
        let [k, rows, experts, w3] = w.shape;
        let [used, tokens, i2, i3] = ids.shape;
        let per_token = x.shape[1];
        if x.ty != ElemType::F32 || ids.ty != ElemType::I32 || out.ty != ElemType::F32 {
            return unsupported(format!("mul_mat_id with x {}, ids {}, out {}", x.ty, ids.ty, out.ty));
        }
        let fits = x.shape == [k, per_token, tokens, 1] && out.shape == [rows, used, tokens, 1];
        if !fits || [w3, i2, i3] != [1; 3] || per_token == 0 || used % per_token != 0 {
            let (w, x, ids, out) = (w.shape, x.shape, ids.shape, out.shape);
            return unsupported(format!("mul_mat_id of weights {w:?}, x {x:?}, ids {ids:?}, out {out:?}"));
        }
        // Tables and kernels count slots and their places in tiles in 32 bits.
        let limit = u64::from(u32::MAX / 2);
        let places = used as u64 * tokens as u64 + experts as u64 * tile_slots as u64;
        for (what, number) in [("k", k as u64), ("rows", rows as u64), ("slots and padding", places)] {
            if number > limit {
                return unsupported(format!("{what} {number} of mul_mat_id, the limit is {limit}"));
            }
        }
        Ok(Shape { k, rows, experts, per_token, used, tokens })
    }

    /// Slots of all tokens.
    pub(super) fn slots(&self) -> usize {
        self.used * self.tokens
    }
}

/// Columns of an `argsort` step, which are at most `most`.
pub(super) fn argsort_cols(x: &Tensor, out: &Tensor, most: usize) -> Result<usize, LoadError> {
    let [cols, ..] = x.shape;
    if x.ty != ElemType::F32 || out.ty != ElemType::I32 || x.shape != out.shape {
        return unsupported(format!("argsort of {} {:?} into {} {:?}", x.ty, x.shape, out.ty, out.shape));
    }
    if cols > most {
        return unsupported(format!("{cols} columns in argsort, the limit is {most}"));
    }
    Ok(cols)
}

/// Columns, k and rows of a `top_k` step.
pub(super) fn top_k_sizes(x: &Tensor, out: &Tensor) -> Result<(u32, u32, usize), LoadError> {
    let ([cols, above @ ..], [k, out_above @ ..]) = (x.shape, out.shape);
    let fits = (1..=cols).contains(&k) && above == out_above;
    if x.ty != ElemType::F32 || out.ty != ElemType::I32 || !fits {
        return unsupported(format!("top_k of {} {:?} into {} {:?}", x.ty, x.shape, out.ty, out.shape));
    }
    if cols > i32::MAX as usize {
        return unsupported(format!("{cols} columns in top_k, the limit is {}", i32::MAX));
    }
    Ok((cols as u32, k as u32, above.iter().product()))
}
