//! Which precision model applies where: by whose kernels they are, weight type, and one token or many.
//!
//! Entries for foreign kernels were found by exact integer cases (`wide`, `narrow`) and from the kernels' arithmetic,
//! and confirmed by runs without a false alarm. A device without an entry is judged as f32 accumulation over 8-bit
//! activations.

use serde::{Deserialize, Serialize};

use super::{Activations, Conversion, Model, Quantiser, Rounding, Roundings, Stage, Sums};
use crate::formats::ElemType;

/// Whose kernels a device runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernels {
    /// This project's, in f32: the embedded device, OpenCL and CUDA.
    Own,
    /// This project's, with tensor cores where they have a kernel: CUDA.
    OwnTensor,
    /// This project's, with sub-groups where they have a kernel: OpenCL.
    OwnSubgroups,
    /// This project's, with f16 where it has a kernel: OpenCL.
    OwnHalf,
    /// Both.
    OwnHalfSubgroups,
    /// ggml's CPU backend where it quantises activations with AVX.
    GgmlCpuAvx,
    /// ggml's CPU backend where it quantises activations by its plain routines: SSE and plain x86-64.
    GgmlCpuPlain,
    /// ggml's CPU backend with weights in repack buffers.
    GgmlRepack,
    /// ggml's Vulkan backend, where it multiplies tiles from the ninth token on.
    GgmlVulkan,
    /// ggml's Vulkan backend before January 2026: tiles from the second token on.
    GgmlVulkanTilesFromTwo,
    /// Nobody's that is known.
    #[default]
    Unknown,
}

impl Kernels {
    /// Whether they are this project's.
    pub fn is_own(self) -> bool {
        matches!(self, Self::Own | Self::OwnTensor | Self::OwnSubgroups | Self::OwnHalf | Self::OwnHalfSubgroups)
    }
}

/// What decides which model applies to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// Whose kernels.
    pub kernels: Kernels,
    /// Weight type.
    pub weights: ElemType,
    /// One token takes another path than many.
    pub tokens: usize,
    /// The device flushes subnormals of f32.
    pub flushes: bool,
    /// The device flushes subnormals of f16.
    pub flushes_f16: bool,
}

/// Roundings k/per + fixed.
const fn roundings(per: usize, fixed: usize) -> Roundings {
    Roundings { times: 1, per, plus: 0, fixed }
}

/// The model of a device's expert matmul.
pub fn of_device(a: &Arithmetic) -> Model {
    let model = match a.kernels {
        Kernels::Own => own(a.weights, a.tokens),
        Kernels::OwnTensor => own_tensor(a.weights, a.tokens),
        Kernels::OwnSubgroups => own_subgroups(a.weights, a.tokens),
        Kernels::OwnHalf => own_half(a.weights, a.tokens, own),
        Kernels::OwnHalfSubgroups => own_half(a.weights, a.tokens, own_subgroups),
        Kernels::GgmlCpuAvx => ggml_cpu(a.weights, Some(Rounding::Even)),
        Kernels::GgmlCpuPlain => ggml_cpu(a.weights, Some(Rounding::Away)),
        Kernels::GgmlRepack => ggml_cpu(a.weights, None),
        Kernels::GgmlVulkan => ggml_vulkan(a.weights, a.tokens > 8),
        Kernels::GgmlVulkanTilesFromTwo => ggml_vulkan(a.weights, a.tokens > 1),
        Kernels::Unknown => unknown(),
    };
    Model { flushes: a.flushes, flushes_f16: a.flushes_f16, ..model }
}

/// A device without an entry.
fn unknown() -> Model {
    Model {
        activations: Activations::Quantised(q8(true, None)),
        ..Model::f32("unknown device: f32 sums over 8-bit activations", roundings(1, 8))
    }
}

/// Known arithmetic that a device without an entry is not allowed, the loosest last. It judges nothing: where only one
/// of these would pass, a failure says so, since that is either the entry which is missing here or lost precision.
pub fn looser_than_unknown(flushes: bool) -> Vec<Model> {
    let converted = |name, weights, activations| Model {
        weights,
        activations: Activations::Converted(activations),
        ..Model::f32(name, roundings(1, 8))
    };
    let wide_blocks = Quantiser { block: 256, ..q8(true, None) };
    let models = [
        converted("f16 operands, f32 sums", Conversion::F16, Conversion::F16),
        Model {
            activations: Activations::Quantised(wide_blocks),
            name: "8-bit activations in blocks of 256",
            ..unknown()
        },
        converted("bf16 operands, f32 sums", Conversion::Bf16, Conversion::Bf16),
        f16_tiles(),
    ];
    models.into_iter().map(|model| Model { flushes, ..model }).collect()
}

/// Our own kernels, counted from their code:
/// - `gemv` (one token, mxfp4): one product and 31 additions in a block, one rounding where the scaled sum is
///   subnormal, one addition per further block of a lane group's share (every fourth block), three to join the
///   groups: ⌈k/128⌉ + 35 at most.
/// - everything else adds k products in order: one rounding for a product and k − 1 for the additions. A device that
///   contracts both, or adds partial sums, only saves roundings.
fn own(weights: ElemType, tokens: usize) -> Model {
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
fn own_tensor(weights: ElemType, tokens: usize) -> Model {
    if weights != ElemType::Mxfp4 || tokens == 1 {
        return own(weights, tokens);
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
fn own_subgroups(weights: ElemType, tokens: usize) -> Model {
    match (weights, tokens) {
        (ElemType::Mxfp4, 1) => Model {
            scales_sums: true,
            ..Model::f32("f32 sums, block scale last, blocks in any order", roundings(32, 32))
        },
        _ => own(weights, tokens),
    }
}

/// Our own kernels with f16: `gemm_half` (many tokens, mxfp4), else as without.
///
/// Weights are formed in f32, where code times scale is exact, and rounded to f16 once, as activations are. A sum in f16
/// is of 8 products: one rounding for a product and seven for the additions on the longest path, that of the first. The
/// k/8 such sums of a row are added in f32, beginning with zero: one rounding each.
fn own_half(weights: ElemType, tokens: usize, otherwise: fn(ElemType, usize) -> Model) -> Model {
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

/// 32 activations share a scale stored in f16.
const fn q8(f16_sums: bool, rounding: Option<Rounding>) -> Quantiser {
    Quantiser { block: 32, f16_scale: true, f16_sums, rounding }
}

/// ggml's CPU backend quantises activations as the weight type asks, and adds 32 or more lanes of partial sums.
///
/// Which quantiser a type asks for is what the builds' own tables say (`vec_dot_type` of
/// `ggml_get_type_traits_cpu`), b4753 to v0.5.0: q8_K for all types of 256 values, q8_0 for iq4_nl, nvfp4, q1_0 and
/// q2_0. Within 256 values codes are summed as integers; their sum may have more than 24 bits, which is one rounding.
/// nvfp4 scales sums of 16 values, so it adds twice as many of them.
fn ggml_cpu(weights: ElemType, rounding: Option<Rounding>) -> Model {
    let quantised = |name, quantiser| Model {
        activations: Activations::Quantised(quantiser),
        ..Model::f32(name, roundings(32, 8))
    };
    let converted = |name, conversion, roundings| Model {
        activations: Activations::Converted(conversion),
        ..Model::f32(name, roundings)
    };
    // min(k, k/16 + 64) + 8: sixteen or more lanes, four registers of them.
    let lanes = Roundings { times: 1, per: 16, plus: 64, fixed: 8 };
    match weights {
        ElemType::F16 => converted("f16 activations, f32 sums", Conversion::F16, lanes),
        ElemType::Bf16 => converted("bf16 activations, f32 sums", Conversion::Bf16, roundings(16, 16)),
        ElemType::Q4_1 | ElemType::Q5_1 => quantised("q8_1 activations, f32 sums", q8(true, rounding)),
        t if t.block_len() == 256 => {
            let name = "q8_K activations, f32 sums";
            // The 256-wide quantiser has one routine, which rounds ties to even.
            let rounding = rounding.map(|_| Rounding::Even);
            let model = quantised(name, Quantiser { block: 256, f16_scale: false, f16_sums: false, rounding });
            // The right value is made of weights that were rounded once themselves.
            let stages = vec![Stage::of_rows(Sums::F32, roundings(32, 9))];
            if t.rounds_when_decoded() { Model { stages, ..model } } else { model }
        }
        ElemType::Nvfp4 => Model {
            stages: vec![Stage::of_rows(Sums::F32, roundings(16, 8))],
            ..quantised("q8_0 activations, f32 sums", q8(false, rounding))
        },
        t if t.is_blocked() => quantised("q8_0 activations, f32 sums", q8(false, rounding)),
        _ => converted("f32 sums in lanes", Conversion::None, lanes),
    }
}

/// ggml's Vulkan backend, as builds show it (`conform devices --probe`): matrix-vector kernels in f32 for few tokens,
/// tiles of f16 operands for more, with f32 sums where the weights are f32 and f16 sums elsewhere; bf16 weights make
/// bf16 activations throughout.
fn ggml_vulkan(weights: ElemType, tiles: bool) -> Model {
    let converted = |name, conversion| Model {
        weights: conversion,
        activations: Activations::Converted(conversion),
        ..Model::f32(name, roundings(1, 8))
    };
    match (weights, tiles) {
        (ElemType::Bf16, _) => converted("bf16 operands, f32 sums", Conversion::Bf16),
        (_, false) => Model { forms_weights: true, ..Model::f32("f32 sums", roundings(1, 8)) },
        (ElemType::F32, _) => converted("f16 operands, f32 sums", Conversion::F16),
        _ => f16_tiles(),
    }
}

/// Both operands in f16, and a rounding to f16 after each product and each addition.
fn f16_tiles() -> Model {
    Model {
        weights: Conversion::F16,
        activations: Activations::Converted(Conversion::F16),
        stages: vec![Stage::of_rows(Sums::F16, Roundings { times: 2, per: 1, plus: 0, fixed: 0 })],
        forms_weights: true,
        ..Model::f32("f16 tiles, f16 sums", roundings(1, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(kernels: Kernels, weights: ElemType, tokens: usize) -> Model {
        of_device(&Arithmetic { kernels, weights, tokens, flushes: false, flushes_f16: false })
    }

    #[test]
    fn the_path_decides() {
        assert!(model(Kernels::Own, ElemType::Mxfp4, 1).scales_sums);
        assert!(!model(Kernels::Own, ElemType::Mxfp4, 2).scales_sums);
        assert!(!model(Kernels::Own, ElemType::F16, 1).scales_sums);
        let in_tiles = |kernels| [1, 2, 8, 9].map(|n| model(kernels, ElemType::F32, n).weights == Conversion::F16);
        assert_eq!(in_tiles(Kernels::GgmlVulkan), [false, false, false, true]);
        assert_eq!(in_tiles(Kernels::GgmlVulkanTilesFromTwo), [false, true, true, true]);
        assert_eq!(model(Kernels::OwnTensor, ElemType::F16, 2), model(Kernels::Own, ElemType::F16, 2));
        assert_eq!(model(Kernels::OwnTensor, ElemType::Mxfp4, 1), model(Kernels::Own, ElemType::Mxfp4, 1));
        assert!(model(Kernels::OwnTensor, ElemType::Mxfp4, 2).stages[0].sums.truncates());
        assert!(
            of_device(&Arithmetic {
                flushes: true,
                flushes_f16: false,
                kernels: Kernels::Own,
                weights: ElemType::F16,
                tokens: 1
            })
            .flushes
        );
    }

    #[test]
    fn forms_of_our_kernels_differ_where_they_have_one() {
        use Kernels::{Own, OwnHalf, OwnHalfSubgroups, OwnSubgroups};
        let (mxfp4, names) = (ElemType::Mxfp4, |kernels| [1, 2].map(|n| model(kernels, ElemType::Mxfp4, n).name));
        let [scaled, f32] = names(Own);
        let ([in_any_order, same], [plain, half]) = (names(OwnSubgroups), names(OwnHalf));
        assert_eq!((same, plain), (f32, scaled));
        assert_eq!(names(OwnHalfSubgroups), [in_any_order, half]);
        assert!(half != f32 && in_any_order != scaled);
        for kernels in [OwnSubgroups, OwnHalf, OwnHalfSubgroups] {
            assert!(kernels.is_own() && model(kernels, ElemType::Q8_0, 2) == model(Own, ElemType::Q8_0, 2));
        }
        let roundings = |kernels, n, k| -> Vec<f64> {
            model(kernels, mxfp4, n).stages.iter().map(|stage| stage.roundings.of(k)).collect()
        };
        assert_eq!(roundings(OwnHalf, 2, 4096), [8.0, 512.0]);
        assert_eq!((roundings(OwnSubgroups, 1, 32), roundings(OwnSubgroups, 1, 4096)), (vec![33.0], vec![160.0]));
    }

    #[test]
    fn ggml_quantises_as_the_weight_type_asks() {
        let quantiser = |w| match model(Kernels::GgmlCpuPlain, w, 1).activations {
            Activations::Quantised(q) => Some((q.block, q.f16_sums, q.rounding)),
            Activations::Converted(_) => None,
        };
        assert_eq!(quantiser(ElemType::Q8_0), Some((32, false, Some(Rounding::Away))));
        assert_eq!(quantiser(ElemType::Q4_1), Some((32, true, Some(Rounding::Away))));
        for wide in [ElemType::Q6K, ElemType::Q2K, ElemType::Iq1M, ElemType::Iq4Xs, ElemType::Tq2_0] {
            assert_eq!(quantiser(wide), Some((256, false, Some(Rounding::Even))), "{wide}");
        }
        for narrow in [ElemType::Iq4Nl, ElemType::Nvfp4, ElemType::Q1_0, ElemType::Q2_0] {
            assert_eq!(quantiser(narrow), Some((32, false, Some(Rounding::Away))), "{narrow}");
        }
        assert_eq!(quantiser(ElemType::F32), None);
    }
}
