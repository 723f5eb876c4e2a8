//! Devices whose outputs are zero, one for each precision model: a bound that lets zeros pass judges nothing.
//!
//! No bug stands behind them. A model of foreign kernels, or of our own where a device has none of the kind, is tried on
//! the embedded device: it rounds less than any of them allows.

use conform_cases::model::Kernels;

use crate::mutants::{Fault, Mutant};

/// One entry.
macro_rules! zeros {
    ($id:literal, $kernels:ident, $model:literal) => {
        Mutant {
            id: $id,
            bug: "-",
            what: concat!("every output is zero, judged by '", $model, "'"),
            op: "mul_mat_id",
            fault: Fault::Zeros { kernels: Kernels::$kernels, model: $model },
        }
    };
}

pub(super) const MUTANTS: &[Mutant] = &[
    zeros!("zeros-f32", Own, "f32 sums"),
    zeros!("zeros-scale-last", Own, "f32 sums, block scale last"),
    zeros!("zeros-subgroups", OwnSubgroups, "f32 sums, block scale last, blocks in any order"),
    zeros!("zeros-half", OwnHalf, "f16 operands, f16 sums of 8, then f32"),
    zeros!("zeros-tensor", OwnTensor, "tensor cores: truncated f32 sums, block scale last"),
    zeros!("zeros-cpu-f32", GgmlRepack, "f32 sums in lanes"),
    zeros!("zeros-cpu-f16", GgmlRepack, "f16 activations, f32 sums"),
    zeros!("zeros-cpu-bf16", GgmlRepack, "bf16 activations, f32 sums"),
    zeros!("zeros-cpu-q8-0", GgmlRepack, "q8_0 activations, f32 sums"),
    zeros!("zeros-cpu-q8-1", GgmlRepack, "q8_1 activations, f32 sums"),
    zeros!("zeros-cpu-q8-k", GgmlRepack, "q8_K activations, f32 sums"),
    zeros!("zeros-vulkan-f32", GgmlVulkan, "f32 sums"),
    zeros!("zeros-vulkan-f16", GgmlVulkan, "f16 operands, f32 sums"),
    zeros!("zeros-vulkan-bf16", GgmlVulkan, "bf16 operands, f32 sums"),
    zeros!("zeros-vulkan-tiles", GgmlVulkan, "f16 tiles, f16 sums"),
    zeros!("zeros-vulkan-q8-1", GgmlVulkanNvidia, "q8_1 activations, f32 sums"),
    zeros!("zeros-cuda-f32", GgmlCuda, "f32 sums"),
    zeros!("zeros-cuda-tf32", GgmlCuda, "tf32 operands, truncated f32 sums"),
    zeros!("zeros-cuda-f16", GgmlCuda, "f16 activations, truncated f32 sums"),
    zeros!("zeros-cuda-f16-sums", GgmlCuda, "f16 activations, f16 sums"),
    zeros!("zeros-cuda-bf16", GgmlCuda, "bf16 activations, truncated f32 sums"),
    zeros!("zeros-cuda-q8-1", GgmlCuda, "q8_1 activations, f32 sums"),
    zeros!("zeros-cuda-q8-1-tiles", GgmlCuda, "q8_1 activations in tiles, f32 sums"),
    zeros!("zeros-unknown", Unknown, "unknown device: f32 sums over 8-bit activations"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::formats::ElemType;
    use conform_cases::model::{Arithmetic, Shape, of_device};

    /// All but those of weights that no device here can decode.
    #[test]
    fn every_precision_model_has_its_zeros() {
        use Kernels::*;
        let ours = [Own, OwnTensor, OwnSubgroups, OwnHalf, OwnHalfSubgroups];
        let groups = [
            &ours[..],
            &[GgmlRepack, GgmlCpuAvx, GgmlCpuPlain],
            &[GgmlVulkan, GgmlVulkanNvidia, GgmlVulkanTilesFromTwo],
        ];
        for group in groups.into_iter().chain([&[GgmlCuda][..], &[Unknown]]) {
            let has = |name| {
                MUTANTS.iter().any(
                    |m| matches!(m.fault, Fault::Zeros { kernels, model } if model == name && group.contains(&kernels)),
                )
            };
            for (kernels, weights) in group.iter().flat_map(|k| ElemType::WEIGHTS.map(|w| (*k, w))) {
                for (tokens, rows, columns) in
                    [1, 2, 3, 8, 9, 33, 600].into_iter().flat_map(|n| [(n, 64, 256), (n, 65, 255), (n, 2048, 256)])
                {
                    let shape = Shape { rows, columns };
                    let arithmetic = Arithmetic { kernels, weights, tokens, shape, flushes: false, flushes_f16: false };
                    let name = of_device(&arithmetic).name;
                    assert!(has(name), "{kernels:?}: '{name}'");
                }
            }
        }
    }
}
