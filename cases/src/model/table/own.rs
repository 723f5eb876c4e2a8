//! This project's kernels: roundings are counted from their code.

use super::roundings;
use crate::formats::ElemType;
use crate::model::{Activations, Conversion, Model, Roundings, Stage, Sums};

/// Our own kernels, counted from their code:
/// - `gemv` (one token, mxfp4): one product and 31 additions in a block, one rounding where the scaled sum is
///   subnormal, one addition per further block of a lane group's share (every fourth block), three to join the
///   groups: ⌈k/128⌉ + 35 at most.
/// - everything else adds k products in order: one rounding for a product and k − 1 for the additions. A device that
///   contracts both, or adds partial sums, only saves roundings.
pub(super) fn plain(weights: ElemType, tokens: usize) -> Model {
    match (weights, tokens) {
        (ElemType::Mxfp4, 1) => Model {
            scales_sums: true,
            forms_weights: false,
            ..Model::f32("f32 sums, block scale last", roundings(128, 35))
        },
        _ => Model { forms_weights: true, ..Model::f32("f32 sums", roundings(1, 0)) },
    }
}

/// Our own kernels with tensor cores: `gemm_tensor` (many tokens, mxfp4), else as without.
///
/// A block of 32 is summed by six multiplications of matrices with 16 columns, those with the upper parts of activations
/// last. Each truncates its 16 products, the running sum and the result: 18 times a unit in the last place of the
/// largest at most, and should the hardware take columns in portions of four, 24 times. The two last ones make 48, the
/// others have addends of at most 2^-8 of that. Blocks are joined by one rounding each: scales are powers of two.
pub(super) fn tensor(weights: ElemType, tokens: usize) -> Model {
    if weights != ElemType::Mxfp4 || tokens == 1 {
        return plain(weights, tokens);
    }
    let in_block = Roundings { times: 0, per: 1, plus: 0, fixed: 50 };
    let blocks = Stage::of_rows(Sums::F32, roundings(32, 0));
    Model {
        scales_sums: true,
        stages: vec![Stage::of_rows(Sums::F32Truncated, in_block), blocks],
        ..Model::f32("tensor cores: truncated f32 sums, block scale last", in_block)
    }
}

/// Our own kernels with sub-groups: `gemv_subgroups` (one token, mxfp4), else as without.
///
/// In a block as in `gemv`: one product, 31 additions, one rounding where the scaled sum is subnormal. Then the k/32 sums
/// of blocks are added, some by each lane and the lanes' by the reduction, whose order nobody states and whose width is
/// the sub-group's, which no device guarantees. Whatever both are, every addition that rounds joins two sums of blocks
/// (a lane without a block adds zero), so no path has more of them than there are blocks less one: k/32 + 32 in all.
pub(super) fn subgroups(weights: ElemType, tokens: usize) -> Model {
    match (weights, tokens) {
        (ElemType::Mxfp4, 1) => Model {
            scales_sums: true,
            ..Model::f32("f32 sums, block scale last, blocks in any order", roundings(32, 32))
        },
        _ => plain(weights, tokens),
    }
}

/// Our own kernels with f16: `gemm_half` (many tokens, mxfp4), else as without.
///
/// Weights are formed in f32, where code times scale is exact, and rounded to f16 once, as activations are. A sum in f16
/// is of 8 products: one rounding for a product and seven for the additions on the longest path, that of the first. The
/// k/8 such sums of a row are added in f32, beginning with zero: one rounding each.
pub(super) fn half(weights: ElemType, tokens: usize, otherwise: fn(ElemType, usize) -> Model) -> Model {
    if weights != ElemType::Mxfp4 || tokens == 1 {
        return otherwise(weights, tokens);
    }
    let together = Roundings { times: 0, per: 1, plus: 0, fixed: 8 };
    let products = Stage { sums: Sums::F16, roundings: together, products: Some(8) };
    Model {
        weights: Conversion::F16,
        activations: Activations::Converted(Conversion::F16),
        stages: vec![products, Stage::of_rows(Sums::F32, roundings(8, 0))],
        forms_weights: true,
        ..Model::f32("f16 operands, f16 sums of 8, then f32", together)
    }
}
