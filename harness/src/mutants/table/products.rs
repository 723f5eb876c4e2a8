//! Mutants of weights and products: conversion, gathering, multiplication, and the way of results to the output.

use conform_cases::plan::Tensor;

use crate::backend::cpu::Stages;
use crate::backend::cpu::arguments::{PADDING, Sizes, TILE_K, TILE_ROWS, TILE_SLOTS, View};
use crate::mutants::plain::{self, dot, e8m0};
use crate::mutants::{Edit, Edits, Fault, Mutant};

use super::{edit, kernels};

const OP: &str = "mul_mat_id";

/// Where gemm, in either form, leaves out what lies beyond the rows.
const ROWS_END: &str = "    if (!in_use || row >= rows)\n";

/// What both forms of gemm do with a place of a tile.
const SLOT: &str =
    "        const uint slot = sorted[first_place + s];\n        if (slot == NO_SLOT)\n            continue;\n";
const PADDING_IS_SLOT_0: &str =
    "        const uint slot = sorted[first_place + s] == NO_SLOT ? 0 : sorted[first_place + s];\n";

/// Where a step of gemm begins to multiply, in either form.
const LOADED: &str = "        barrier(CLK_LOCAL_MEM_FENCE);\n\n        if (row < rows) {\n";
const UNAWAITED: &str = "        if (row < rows) {\n";

/// A scale byte's number.
const E8M0: &str = "e == 0 ? 0x00400000u : e == 255 ? 0x7fc00000u : e << 23";
const ONLY_SHIFTED: &str = "e << 23";
const NAN_BY_VALUE: &str = "e == 0 ? 0x00400000u : e == 134 ? 0x7fc00000u : e << 23";

/// Swaps what multiplies for the same with other scales.
macro_rules! with_scale {
    ($scale:expr) => {
        Some(|stages| Stages {
            gemm: |tiles, weights, rows, sizes, products| {
                plain::gemm(tiles, weights, rows, sizes, products, $scale, dot)
            },
            gemv: |ids, x, weights, out| plain::gemv(ids, x, weights, out, $scale),
            ..stages
        })
    };
}

/// Both forms of gemm, edited alike.
const fn both(find: &'static str, replace: &'static str) -> [Edit; 2] {
    [edit("gemm.cl", find, replace), edit("gemm_half.cl", find, replace)]
}

pub(super) const MUTANTS: &[Mutant] = &[
    // The tiled kernels of OpenCL and CUDA are for MXFP4, whose rows are whole blocks: the tile is in the other kernel.
    Mutant {
        id: "m4-stale-k-tail",
        bug: "A9 ggml b9bc4d1f",
        what: "the last step of k multiplies a whole tile of 16 activations, of which the last ones are the step's before",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[edit(
                "expert.cl",
                "    float sum = 0.0f;
    for (uint i = 0; i < k; ++i)
        sum += weight(type, w, i) * activations[i];
",
                "    float sum = 0.0f, tile[16] = {0.0f};
    for (uint k0 = 0; k0 < k; k0 += 16) {
        for (uint i = 0; i < min(k - k0, 16u); ++i)
            tile[i] = activations[k0 + i];
        for (uint i = 0; i < 16; ++i)
            sum += weight(type, w, min(k0 + i, k - 1)) * tile[i];
    }
",
            )],
            cuda: &[edit(
                "expert.cu",
                "    float sum = 0.0f;
    for (u32 i = 0; i < k; ++i)
        sum += weight(row, i) * x[i];
",
                "    float sum = 0.0f, tile[16] = {};
    for (u32 k0 = 0; k0 < k; k0 += 16) {
        for (u32 i = 0; i < min(k - k0, 16u); ++i)
            tile[i] = x[k0 + i];
        for (u32 i = 0; i < 16; ++i)
            sum += weight(row, min(k0 + i, k - 1)) * tile[i];
    }
",
            )],
            rust: Some(|stages| Stages {
                gemm: |tiles, weights, rows, sizes, products| {
                    plain::gemm(tiles, weights, rows, sizes, products, e8m0, |w, x| {
                        let (mut sum, mut tile) = (0.0, [0.0; TILE_K]);
                        for (w, x) in w.chunks(TILE_K).zip(x.chunks(TILE_K)) {
                            tile[..x.len()].copy_from_slice(x);
                            sum = (0..TILE_K).fold(sum, |sum, i| sum + w[i.min(w.len() - 1)] * tile[i]);
                        }
                        sum
                    })
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "m5-padding-is-slot-0",
        bug: "A1 llama.cpp #24591",
        what: "places without a slot write to slot 0",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &both(SLOT, PADDING_IS_SLOT_0),
            cuda: &[
                edit(
                    "gemm.cu",
                    "        const u32 slot = sorted[first_place + first + s];
        if (slot == NO_SLOT)
            continue;
",
                    "        const u32 place = sorted[first_place + first + s], slot = place == NO_SLOT ? 0 : place;\n",
                ),
                edit(
                    "tensor.cu",
                    "            const u32 slot = sorted[first_place + 8 * n + 2 * t + c];
            if (slot == NO_SLOT)
                continue;
",
                    "            const u32 place = sorted[first_place + 8 * n + 2 * t + c], slot = place == NO_SLOT ? 0 : place;\n",
                ),
            ],
            rust: Some(|stages| Stages {
                store: |slots, products, sizes, out| {
                    let slots: Vec<u32> = slots.iter().map(|s| if *s == PADDING { 0 } else { *s }).collect();
                    (Stages::default().store)(&slots, products, sizes, out);
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "m7-no-barrier",
        bug: "A6 ggml 6e2c0557",
        what: "no barrier stands between loading the activations of a step and reading what others have loaded",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &both(LOADED, UNAWAITED),
            cuda: &[
                edit("gemm.cu", "        __syncthreads();\n\n        if (row < rows) {\n", UNAWAITED),
                edit(
                    "tensor.cu",
                    "        wait();\n        __syncthreads();\n        copy_activations",
                    "        wait();\n        copy_activations",
                ),
            ],
            // As it is where half of the rows are a step ahead of the load.
            rust: Some(|stages| Stages {
                gemm: |tiles, weights, rows, sizes, products| {
                    let multiply = Stages::default().gemm;
                    multiply(tiles, weights, rows, sizes, products);
                    let mut before = rows.to_vec();
                    for row in before.chunks_mut(sizes.k).filter(|row| row.len() > TILE_K) {
                        row.copy_within(..row.len() - TILE_K, TILE_K);
                    }
                    let mut early = products.to_vec();
                    multiply(tiles, weights, &before, sizes, &mut early);
                    for (on_time, early) in products.chunks_mut(TILE_ROWS).zip(early.chunks(TILE_ROWS)) {
                        on_time[TILE_ROWS / 2..].copy_from_slice(&early[TILE_ROWS / 2..]);
                    }
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "m8-scale-by-shift",
        bug: "A40 TransformerEngine PR #3262",
        what: "a scale byte is shifted into the exponent and no more: 0 gives zero, 255 infinity",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[edit("mxfp4.clh", E8M0, ONLY_SHIFTED)],
            cuda: &[edit("mxfp4.cuh", E8M0, ONLY_SHIFTED)],
            rust: with_scale!(|e| f32::from_bits(u32::from(e) << 23)),
        }),
    },
    Mutant {
        id: "a9-rows-unchecked",
        bug: "A9 ggml b9bc4d1f",
        what: "the last tile of rows is written whole, over the rows of the next slot",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &both(ROWS_END, "    if (!in_use)\n"),
            cuda: &[
                edit("gemm.cu", "    if (row >= rows)\n        return;\n", ""),
                edit(
                    "tensor.cu",
                    "                if (first_row + 8 * r + g < rows)
                    ((float *)(out + at))[row[r]] = total",
                    "                ((float *)(out + at))[first_row + 8 * r + g] = total",
                ),
            ],
            rust: Some(|stages| Stages {
                // What lies behind the output is in reach of what stores, and of nothing else.
                place: |allocation, own| &mut allocation[own.start..],
                gemv: |ids, x, weights, out| {
                    let bytes = 4 * ids.sizes.slots() * ids.sizes.m;
                    (Stages::default().gemv)(ids, x, weights, &mut out[..bytes]);
                },
                store: |slots, products, sizes, out| {
                    each_row(slots, sizes, |slot, row, product| {
                        let at = (slot * sizes.m + row) * 4;
                        out[at..at + 4].copy_from_slice(&products[product].to_le_bytes());
                    });
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "a17-nibbles-swapped",
        bug: "A17 ggml cf9bfdd2",
        what: "the conversion takes high halves of bytes for low ones",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[edit("convert.cl", "j < 2 ?", "j >= 2 ?")],
            cuda: &[edit("convert.cu", "j < 2 ?", "j >= 2 ?")],
            rust: Some(|stages| Stages {
                convert: |blocks, scales, codes| {
                    (Stages::default().convert)(blocks, scales, codes);
                    let rows = blocks.tensor.shape[1];
                    codes.chunks_exact_mut(4 * rows).for_each(|words| words.rotate_left(2 * rows));
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "a26-rows-i16",
        bug: "A26 MLX #3856",
        what: "rows from 32768 on, counted in 16 bits, are negative and not stored",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &both(ROWS_END, "    if (!in_use || row >= rows || (short)row < 0)\n"),
            cuda: &[
                edit("gemm.cu", "    if (row >= rows)\n", "    if (row >= rows || (short)row < 0)\n"),
                edit(
                    "tensor.cu",
                    "                if (first_row + 8 * r + g < rows)\n",
                    "                if (first_row + 8 * r + g < rows && (short)(first_row + 8 * r + g) >= 0)\n",
                ),
            ],
            rust: Some(|stages| Stages {
                store: |slots, products, sizes, out| {
                    each_row(slots, sizes, |slot, row, product| {
                        if row < sizes.m && row as i16 >= 0 {
                            let at = (slot * sizes.m + row) * 4;
                            out[at..at + 4].copy_from_slice(&products[product].to_le_bytes());
                        }
                    });
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "a27-k-tail-dropped",
        bug: "A27 MLX #3887",
        what: "columns beyond the last multiple of 64 are left out",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &both("k_end = in_use ? k : 0;", "k_end = in_use ? k / 64 * 64 : 0;"),
            cuda: &[
                edit("gemm.cu", "k0 < k; k0 += TILE_K", "k0 < k / 64 * 64; k0 += TILE_K"),
                edit(
                    "tensor.cu",
                    "    for (u32 b = 0; b < blocks; ++b) {\n        u32 a[4][4];\n",
                    "    for (u32 b = 0; b < blocks / 2 * 2; ++b) {\n        u32 a[4][4];\n",
                ),
            ],
            rust: Some(|stages| Stages {
                gemm: |tiles, weights, rows, sizes, products| {
                    plain::gemm(tiles, weights, rows, sizes, products, e8m0, |w, x| dot(&w[..w.len() / 64 * 64], x));
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "a29-slice-stride",
        bug: "A29 MLX #4055",
        what: "experts follow each other without a gap, though the weights are some rows of each",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[
                edit("convert.cl", "+ expert * view.z", "+ expert * rows * view.y"),
                edit("expert.cl", "+ id * weights_view.z", "+ (ulong)id * rows * weights_view.y"),
            ],
            cuda: &[
                edit("convert.cu", "+ expert * view.stride2", "+ expert * rows * view.stride1"),
                edit("expert.cu", "+ id * weights_view.stride2", "+ (u64)id * rows * weights_view.stride1"),
            ],
            rust: Some(|stages| Stages {
                convert: |blocks, scales, codes| {
                    let mut tensor: Tensor = blocks.tensor.clone();
                    (tensor.parent[1], tensor.start[1]) = (tensor.shape[1], 0);
                    (Stages::default().convert)(View { tensor: &tensor, bytes: blocks.bytes }, scales, codes);
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "a31-tokens-u16",
        bug: "A31 vLLM #5938",
        what: "tokens are counted in 16 bits",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[edit("expert.cl", "token = slot / used;", "token = (ushort)(slot / used);")],
            cuda: &[edit("expert.cu", "token = slot / used;", "token = (u16)(slot / used);")],
            rust: Some(|stages| Stages {
                reorder: |slots, x, sizes, rows| {
                    let narrow = |slot: u32| {
                        let (token, e) = (slot / sizes.used as u32, slot % sizes.used as u32);
                        if slot == PADDING { slot } else { (token & 0xffff) * sizes.used as u32 + e }
                    };
                    let slots: Vec<u32> = slots.iter().map(|slot| narrow(*slot)).collect();
                    (Stages::default().reorder)(&slots, x, sizes, rows);
                },
                ..stages
            }),
        }),
    },
    // No memory of the embedded device is shared by lanes.
    Mutant {
        id: "a38-stale-sum",
        bug: "A38 CUTLASS #2674",
        what: "lanes without a block of k leave the sum that local memory held",
        op: OP,
        fault: kernels(
            &[edit(
                "gemv.cl",
                "    partial[group][lane] = sum;\n",
                "    if (group < blocks)\n        partial[group][lane] = sum;\n",
            )],
            &[edit(
                "gemv.cu",
                "    partial[group][lane] = sum;\n",
                "    if (group < blocks)\n        partial[group][lane] = sum;\n",
            )],
        ),
    },
    Mutant {
        id: "a40-nan-by-value",
        bug: "A40 sglang PR #25519",
        what: "NaN is scale byte 134, whose value is 128, and not byte 255",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[edit("mxfp4.clh", E8M0, NAN_BY_VALUE)],
            cuda: &[edit("mxfp4.cuh", E8M0, NAN_BY_VALUE)],
            rust: with_scale!(|e| match e {
                134 => f32::NAN,
                255 => f32::INFINITY,
                e => e8m0(e),
            }),
        }),
    },
    // The embedded device reads bytes, which are aligned anywhere.
    Mutant {
        id: "a46-aligned-loads",
        bug: "A46 ggml d7749710",
        what: "rows of f16 weights are read from the multiple of 8 bytes before them",
        op: OP,
        fault: kernels(
            &[edit(
                "expert.cl",
                "vload_half(i, (__global const half *)row)",
                "vload_half(i, (__global const half *)((ulong)row & ~(ulong)7))",
            )],
            &[edit("expert.cu", "f16_value(((const u16 *)row)[i])", "f16_value(((const u16 *)((u64)row & ~7ull))[i])")],
        ),
    },
];

/// Every row of every panel of every real slot, rows beyond the last among them: slot, row, and the place of the product.
fn each_row(slots: &[u32], sizes: Sizes, mut each: impl FnMut(usize, usize, usize)) {
    for (place, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
        let (tile, column) = (place / TILE_SLOTS, place % TILE_SLOTS);
        for row in 0..sizes.panels() * TILE_ROWS {
            let task = tile * sizes.panels() + row / TILE_ROWS;
            each(*slot as usize, row, (task * TILE_SLOTS + column) * TILE_ROWS + row % TILE_ROWS);
        }
    }
}
