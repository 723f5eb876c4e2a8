//! Which precision model applies where: by whose kernels they are, weight type, and one token or many.
//!
//! Entries for foreign kernels were found by exact integer cases (`wide`, `narrow`) and from the kernels' arithmetic,
//! and confirmed by runs without a false alarm. A device without an entry is judged as f32 accumulation over 8-bit
//! activations.

mod ggml;
mod own;

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
    /// The same on an NVIDIA card with integer dot products and matrix cores.
    GgmlVulkanNvidia,
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
        Kernels::Own => own::plain(a.weights, a.tokens),
        Kernels::OwnTensor => own::tensor(a.weights, a.tokens),
        Kernels::OwnSubgroups => own::subgroups(a.weights, a.tokens),
        Kernels::OwnHalf => own::half(a.weights, a.tokens, own::plain),
        Kernels::OwnHalfSubgroups => own::half(a.weights, a.tokens, own::subgroups),
        Kernels::GgmlCpuAvx => ggml::cpu(a.weights, Some(Rounding::Even)),
        Kernels::GgmlCpuPlain => ggml::cpu(a.weights, Some(Rounding::Away)),
        Kernels::GgmlRepack => ggml::cpu(a.weights, None),
        Kernels::GgmlVulkan => ggml::vulkan(a.weights, a.tokens > 8),
        Kernels::GgmlVulkanNvidia => ggml::vulkan_nvidia(a),
        Kernels::GgmlVulkanTilesFromTwo => ggml::vulkan(a.weights, a.tokens > 1),
        Kernels::GgmlCuda => ggml::cuda(a),
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

/// 32 activations share a scale stored in f16.
const fn q8(f16_sums: bool, rounding: Option<Rounding>) -> Quantiser {
    let parts = Parts { sums_of_values: false, centres: false, scales: Scales::Whole };
    Quantiser { block: 32, f16_scale: true, f16_sums, rounding, parts }
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
    fn ggml_vulkan_quantises_activations_where_nvidia_gains_by_it() {
        let is_quantised = |weights, tokens, columns| {
            let (kernels, shape) = (Kernels::GgmlVulkanNvidia, Shape { rows: 64, columns });
            let a = Arithmetic { kernels, weights, tokens, shape, flushes: false, flushes_f16: false };
            matches!(of_device(&a).activations, Activations::Quantised(_))
        };
        let at =
            |weights| [(1, 4096), (1, 4352), (2, 256), (8, 256), (9, 4352)].map(|(n, k)| is_quantised(weights, n, k));
        assert_eq!(at(ElemType::Q4_0), [false, true, true, true, false]);
        assert_eq!(at(ElemType::Mxfp4), [false, false, true, true, false]);
        assert_eq!(at(ElemType::Q2K), [true, true, true, true, false]);
        for never in [ElemType::F32, ElemType::F16, ElemType::Bf16, ElemType::Q6K, ElemType::Iq4Nl] {
            assert_eq!(at(never), [false; 5], "{never}");
        }
        assert_eq!(model(Kernels::GgmlVulkanNvidia, ElemType::F32, 9).name, "f16 tiles, f16 sums");
        assert_eq!(model(Kernels::GgmlVulkanNvidia, ElemType::Bf16, 9), model(Kernels::GgmlVulkan, ElemType::Bf16, 9));
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
