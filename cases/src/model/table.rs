//! Which precision model applies where: by whose kernels they are, weight type, and one token or many.
//!
//! Entries for foreign kernels were found by exact integer cases (`wide`, `narrow`) and from the kernels' arithmetic,
//! and confirmed by runs without a false alarm. A device without an entry is judged as f32 accumulation over 8-bit
//! activations.

use serde::{Deserialize, Serialize};

use super::{Activations, Conversion, Model, Parts, Quantiser, Rounding, Roundings, Scales, Stage, Sums};
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
    /// ggml's CUDA backend on a card of compute capability 8.9 or later.
    GgmlCuda,
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
    /// And some shapes of an expert's weights than others.
    pub shape: Shape,
    /// The device flushes subnormals of f32.
    pub flushes: bool,
    /// The device flushes subnormals of f16.
    pub flushes_f16: bool,
}

/// An expert's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows, m.
    pub rows: usize,
    /// Columns, k.
    pub columns: usize,
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
        Kernels::GgmlCuda => ggml_cuda(a),
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
    let parts = Parts { sums_of_values: false, centres: false, scales: Scales::Whole };
    Quantiser { block: 32, f16_scale: true, f16_sums, rounding, parts }
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
            let model = quantised(name, Quantiser { block: 256, f16_scale: false, ..q8(false, rounding) });
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

/// ggml's CUDA backend, as the sources of 0.25.3 have it and an NVIDIA H200 confirms. The last number of
/// tokens for matrix-vector kernels is 8 for all types from compute capability 8.9 on (`get_mmvq_mmid_max_batch`).
fn ggml_cuda(a: &Arithmetic) -> Model {
    match (a.weights, a.tokens) {
        (ElemType::F32 | ElemType::F16 | ElemType::Bf16, _) => ggml_cuda_float(a),
        (weights, 0..=8) => ggml_cuda_vector(weights),
        (weights, _) => ggml_cuda_tiles(weights),
    }
}

/// Weights that are not in blocks: `mul_mat_f` where the shape suits it (k a multiple of 128 bytes, m one of 32, at most
/// 128 tokens, 512 where m is at most 1024), else tokens are sorted on the host and each expert multiplies its own, by
/// `mul_mat_vec_f` or cuBLAS.
///
/// `mul_mat_f` multiplies on tensor cores: 16 columns at a time, for f32 8. f16 and bf16 weights have activations rounded
/// to their own type; f32 operands are handed over as they are, and the hardware cuts them to tf32. Each multiplication of
/// matrices truncates its products, the running sum and the result, 18 times for 16 columns (10 for 8), and should the
/// hardware take columns in portions of four, 24 times (12): 3/2 for a column. Warps share the columns, and their sums are
/// added in f32; so are those of parts of a row in cuBLAS, whose kernels are nobody's to read. Every such addition joins
/// sums of 8 columns or more: 1/8 for a column.
///
/// cuBLAS is asked for f32 sums of bf16 operands, for tf32 operands where the weights are f32, and for f16 sums and an f16
/// result where they are f16 (`CUBLAS_COMPUTE_16F`): a rounding after each product and each addition at most, and one for
/// the result.
///
/// An expert of f32 weights with up to three tokens has `mul_mat_vec_f`, if k is even: fused multiplications and additions
/// of pairs of columns, two for each of a lane's shares of which a warp of 32 lanes takes 64 columns, then two reductions
/// of five additions.
fn ggml_cuda_float(a: &Arithmetic) -> Model {
    let Shape { rows, columns } = a.shape;
    let (bytes, operands) = match a.weights {
        ElemType::F32 => (4, Conversion::Tf32),
        ElemType::F16 => (2, Conversion::F16),
        _ => (2, Conversion::Bf16),
    };
    let suits = (columns * bytes) % 128 == 0 && rows % 32 == 0 && a.tokens <= if rows <= 1024 { 512 } else { 128 };
    let tensor = Roundings { times: 13, per: 8, plus: 0, fixed: 8 };
    let converted = |name, stage| Model {
        weights: if a.weights == ElemType::F32 { operands } else { Conversion::None },
        activations: Activations::Converted(operands),
        stages: vec![stage],
        ..Model::f32(name, tensor)
    };
    let truncated = Stage::of_rows(Sums::F32Truncated, tensor);
    match a.weights {
        ElemType::F32 if !suits && a.tokens <= 3 && columns % 2 == 0 => Model::f32("f32 sums", roundings(32, 12)),
        ElemType::F32 => converted("tf32 operands, truncated f32 sums", truncated),
        ElemType::F16 if !suits => {
            let halves = Roundings { times: 2, per: 1, plus: 0, fixed: 1 };
            converted("f16 activations, f16 sums", Stage::of_rows(Sums::F16, halves))
        }
        ElemType::F16 => converted("f16 activations, truncated f32 sums", truncated),
        _ => converted("bf16 activations, truncated f32 sums", truncated),
    }
}

/// Up to eight tokens of weights in blocks: `mul_mat_vec_q` for one, `mul_mat_vec_q_moe` for more.
///
/// `quantize_q8_1` makes codes round(x / d) of 32 activations, d = max|x| / 127, and stores d and the sum of the 32
/// activations (not of their codes) in f16. Divisions are approximate (`-use_fast_math`), so that codes near a tie are not
/// foretold and d may be stored as a neighbour: codes are not known, only bounded. The stored sum is used by
/// - q4_0, q5_0: d·(Σ code·q·d₈ − 8·s), codes from 0 on, so the error of q meets all of a code;
/// - q4_1, q5_1: both d·d₈ and m·s are formed in f16 (`__hmul2`);
/// - iq1_s, for its offsets of an eighth.
///
/// All other types sum codes. Within a block codes are summed as integers. On one path lie, per lane, ⌈k/256⌉ additions at
/// most: 8 blocks of q8_0 for a warp at a time, one of 256 columns of q6_K, more of other types; then three additions to
/// join warps, five in a warp, and up to four products and sums on the way from integers to the lane's sum.
fn ggml_cuda_vector(weights: ElemType) -> Model {
    let quantiser = match weights {
        ElemType::Q4_0 | ElemType::Q5_0 => {
            of_values(Parts { centres: true, scales: Scales::Apart, ..Parts::default() })
        }
        ElemType::Q4_1 | ElemType::Q5_1 => of_values(Parts { scales: Scales::HalfProducts, ..Parts::default() }),
        ElemType::Iq1S => of_values(Parts { scales: Scales::Apart, ..Parts::default() }),
        _ => apart(q8(false, None)),
    };
    Model {
        activations: Activations::Quantised(quantiser),
        ..Model::f32("q8_1 activations, f32 sums", roundings(256, 12))
    }
}

/// More tokens of weights in blocks: `mul_mat_q`.
///
/// `quantize_mmq_q8_1` makes codes round(x · (127 / max|x|)) of 32 activations (64 for q2_K), approximate as above. What it
/// stores depends on the type (`mmq_get_q8_1_ds_layout`): 1 / (127 / max|x|) in f32, or in f16 for q4_0 and those with
/// offsets, which store the sum of the activations in f16 beside it. q2_K does so for three quarters of its columns, in
/// sums of 16. q4_K, q5_K, q2_K and iq1_s form the scale and the minimum of a part of a block in f16
/// (`dm * make_half2(sc, m)`). Sums are multiplied with one scale, then the other: with a scale of mxfp4 that may overflow
/// although the result does not.
///
/// 32 columns add four terms at most (q2_K: two scales, two minima), and a tile's columns are split at multiples of 256,
/// whose sums are added: 33k/256, with up to eight products and sums on the way from integers.
///
/// iq1_m has no such kernel: an expert with up to eight tokens is multiplied as above, one with more by cuBLAS with weights
/// and activations in f16 and f16 sums. Which of them is not foretold here: both are allowed together.
fn ggml_cuda_tiles(weights: ElemType) -> Model {
    let in_halves = of_values(Parts { scales: Scales::HalfWeights, ..Parts::default() });
    let quantiser = match weights {
        ElemType::Q4_0 | ElemType::Iq1M => apart(q8(false, None)),
        ElemType::Q4_1 | ElemType::Q5_1 => of_values(Parts { scales: Scales::Apart, ..Parts::default() }),
        ElemType::Q4K | ElemType::Q5K | ElemType::Iq1S => in_halves,
        ElemType::Q2K => Quantiser { block: 64, ..in_halves },
        _ => apart(Quantiser { f16_scale: false, ..q8(false, None) }),
    };
    let tiles = Roundings { times: 33, per: 256, plus: 0, fixed: 8 };
    let model = Model {
        activations: Activations::Quantised(quantiser),
        ..Model::f32("q8_1 activations in tiles, f32 sums", tiles)
    };
    match weights {
        ElemType::Iq1M => Model {
            weights: Conversion::F16,
            stages: f16_tiles().stages,
            name: "q8_1 activations, or f16 operands and f16 sums",
            ..model
        },
        _ => model,
    }
}

/// The sum of 32 activations is stored, that of their values.
const fn of_values(parts: Parts) -> Quantiser {
    let quantiser = q8(true, None);
    Quantiser { parts: Parts { sums_of_values: true, ..parts }, ..quantiser }
}

/// Scales are multiplied one after the other.
const fn apart(quantiser: Quantiser) -> Quantiser {
    Quantiser { parts: Parts { scales: Scales::Apart, ..quantiser.parts }, ..quantiser }
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
        let shape = Shape { rows: 64, columns: 256 };
        of_device(&Arithmetic { kernels, weights, tokens, shape, flushes: false, flushes_f16: false })
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
                tokens: 1,
                shape: Shape { rows: 1, columns: 1 },
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
    fn ggml_cuda_takes_its_paths_by_type_tokens_and_shape() {
        let name = |weights, tokens, rows, columns| {
            let (kernels, shape) = (Kernels::GgmlCuda, Shape { rows, columns });
            let a = Arithmetic { kernels, weights, tokens, shape, flushes: true, flushes_f16: false };
            of_device(&a).name
        };
        let (f32, tf32) = ("f32 sums", "tf32 operands, truncated f32 sums");
        for (tokens, rows, columns, wanted) in
            [(1, 32, 32, tf32), (3, 33, 32, f32), (4, 33, 32, tf32), (3, 33, 33, tf32), (3, 32, 34, f32)]
        {
            assert_eq!(name(ElemType::F32, tokens, rows, columns), wanted, "{tokens} {rows} {columns}");
        }
        let (halves, sums) = ("f16 activations, f16 sums", "f16 activations, truncated f32 sums");
        for (tokens, rows, columns, wanted) in [
            (1, 32, 64, sums),
            (1, 32, 32, halves),
            (513, 32, 64, halves),
            (512, 32, 64, sums),
            (129, 1056, 64, halves),
        ] {
            assert_eq!(name(ElemType::F16, tokens, rows, columns), wanted, "{tokens} {rows} {columns}");
        }
        let quantiser = |w, tokens| match model(Kernels::GgmlCuda, w, tokens).activations {
            Activations::Quantised(q) => (q.block, q.f16_scale, q.f16_sums, q.parts.scales),
            Activations::Converted(c) => panic!("{c:?}"),
        };
        assert_eq!(quantiser(ElemType::Q4_0, 8), (32, true, true, Scales::Apart));
        assert_eq!(quantiser(ElemType::Q4_0, 9), (32, true, false, Scales::Apart));
        assert_eq!(quantiser(ElemType::Q5_1, 8), (32, true, true, Scales::HalfProducts));
        assert_eq!(quantiser(ElemType::Q5_0, 9), (32, false, false, Scales::Apart));
        assert_eq!(quantiser(ElemType::Q4K, 9), (32, true, true, Scales::HalfWeights));
        assert_eq!(quantiser(ElemType::Q4K, 8), (32, true, false, Scales::Apart));
        assert_eq!(quantiser(ElemType::Q2K, 9), (64, true, true, Scales::HalfWeights));
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
