//! ggml's kernels, by backend: found by exact cases and from their arithmetic, confirmed by runs.

use super::{Arithmetic, Shape, f16_tiles, q8, roundings};
use crate::formats::ElemType;
use crate::model::{Activations, Conversion, Model, Parts, Quantiser, Rounding, Roundings, Scales, Stage, Sums};

/// ggml's CPU backend quantises activations as the weight type asks, and adds 32 or more lanes of partial sums.
///
/// Which quantiser a type asks for is what the builds' own tables say (`vec_dot_type` of
/// `ggml_get_type_traits_cpu`), b4753 to v0.5.0: q8_K for all types of 256 values, q8_0 for iq4_nl, nvfp4, q1_0 and
/// q2_0. Within 256 values codes are summed as integers; their sum may have more than 24 bits, which is one rounding.
/// nvfp4 scales sums of 16 values, so it adds twice as many of them.
pub(super) fn cpu(weights: ElemType, rounding: Option<Rounding>) -> Model {
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
pub(super) fn vulkan(weights: ElemType, tiles: bool) -> Model {
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

/// ggml's Vulkan backend on NVIDIA cards from Turing on, as the sources of 0.25 have it (`ggml_vk_should_use_mmvq`) and an
/// NVIDIA H200 confirms. With integer dot products the matrix-vector kernels take activations as q8_1: always for 2 to 8
/// tokens; for one where there are more than 4,096 columns, but for mxfp4 and q8_0, and for types of which a code costs
/// more than that. (Activations with a margin stay f32, which is within the bounds of the other.) q6_K and types without
/// such a kernel never do. On matrix cores f32 weights are multiplied as all others are, in tiles of f16 with f16 sums.
///
/// `quantize_q8_1` makes codes round(x / d) of 32 activations, d = max|x| / 127, and stores d and d times the sum of the
/// codes in f16, which q4_0 and q5_0 multiply their centres with. On one path lie, per lane, an addition for each quarter of
/// a block at most, and those that join lanes.
pub(super) fn vulkan_nvidia(a: &Arithmetic) -> Model {
    use ElemType::{F32, Iq1M, Iq1S, Mxfp4, Q2_0, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q8_0};
    let parts = match a.weights {
        Q4_0 | Q5_0 => Parts { centres: true, scales: Scales::Apart, ..Parts::default() },
        _ => Parts { scales: Scales::Apart, ..Parts::default() },
    };
    let gains = match (a.weights, a.tokens) {
        (Q2_0 | Q2K | Q3K | Iq1S | Iq1M, 1..=8) => true,
        (Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q4K | Q5K, 1) => a.shape.columns > 4096,
        (Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q4K | Q5K | Mxfp4 | Q8_0, 2..=8) => true,
        _ => false,
    };
    match a.weights {
        _ if gains => Model {
            activations: Activations::Quantised(Quantiser { parts, ..q8(true, None) }),
            ..Model::f32("q8_1 activations, f32 sums", roundings(8, 16))
        },
        F32 if a.tokens > 8 => f16_tiles(),
        weights => vulkan(weights, a.tokens > 8),
    }
}

/// ggml's CUDA backend, as the sources of 0.25.3 have it and an NVIDIA H200 confirms. The last number of
/// tokens for matrix-vector kernels is 8 for all types from compute capability 8.9 on (`get_mmvq_mmid_max_batch`).
pub(super) fn cuda(a: &Arithmetic) -> Model {
    match (a.weights, a.tokens) {
        (ElemType::F32 | ElemType::F16 | ElemType::Bf16, _) => cuda_float(a),
        (weights, 0..=8) => cuda_vector(weights),
        (weights, _) => cuda_tiles(weights),
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
fn cuda_float(a: &Arithmetic) -> Model {
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
fn cuda_vector(weights: ElemType) -> Model {
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
fn cuda_tiles(weights: ElemType) -> Model {
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
