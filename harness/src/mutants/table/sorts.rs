//! Mutants of argsort and top-k.

use conform_cases::formats::ElemType;
use conform_cases::plan::{Order, Role, Tensor};

use crate::backend::cpu::Stages;
use crate::backend::cpu::arguments::View;
use crate::mutants::plain::{self, key};
use crate::mutants::{Edits, Fault, Mutant};

use super::{edit, kernels};

const ARGSORT: &str = "argsort";
const TOP_K: &str = "top_k";

/// Where top-k, in both languages, decides on a column.
const CHOICE: &str = "        if (rank < kth || (rank == kth && ties++ < wanted))\n";

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        id: "m9-infinite-padding",
        bug: "B4 llama.cpp PR #27538",
        what: "columns are padded with an infinity and told from padding by their values alone",
        op: ARGSORT,
        fault: Fault::Kernels(Edits {
            opencl: &[
                edit(
                    "argsort.cl",
                    "real ? ((__global const uint *)(x + row_offset(x_view, dims, row)))[col] : 0;",
                    "real ? ((__global const uint *)(x + row_offset(x_view, dims, row)))[col]
                               : descending ? 0xff800000u : 0x7f800000u;",
                ),
                edit(
                    "argsort.cl",
                    "const uint bits = col < cols ? ((__global const uint *)(x + row_offset(x_view, dims, row)))[col] : 0;",
                    "const uint bits = col < cols ? ((__global const uint *)(x + row_offset(x_view, dims, row)))[col]
                                 : descending ? 0xff800000u : 0x7f800000u;",
                ),
                edit(
                    "argsort.cl",
                    "    const bool padding_a = index_a >= cols;
    const bool padding_b = index_b >= cols;
    if (padding_a != padding_b)
        return padding_b;
    return key_a != key_b ? key_a < key_b : index_a < index_b;
",
                    "    return key_a < key_b;\n",
                ),
            ],
            cuda: &[
                edit("argsort.cu", "u32 key = 0xffffffffu;", "u32 key = 0xff800000u;"),
                edit("argsort.cu", "if ((second < first) == up)", "if ((second >> 32 < first >> 32) == up)"),
            ],
            rust: Some(|stages| Stages {
                argsort: |x, order, _, out| {
                    let padding = key(if order == Order::Asc { f32::INFINITY } else { f32::NEG_INFINITY }, order);
                    plain::argsort(x, order, out, |entries| {
                        let cols = entries.len();
                        entries.resize(cols.next_power_of_two(), (padding, cols as u32));
                        // Where keys are equal any order will do: the last comes first.
                        entries.reverse();
                        entries.sort_by_key(|entry| entry.0);
                        entries.truncate(cols);
                    });
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "m10-ties-displace",
        bug: "B3 ggml e95bb22d",
        what: "whatever is no worse than the k-th is taken in the order of columns, until k are there",
        op: TOP_K,
        fault: Fault::Kernels(Edits {
            opencl: &[
                edit("top_k.cl", "    place += min(ties, wanted);\n", "    place += ties;\n"),
                edit("top_k.cl", CHOICE, "        if (rank <= kth && place < k)\n"),
            ],
            cuda: &[
                edit("top_k.cu", "    place += min(ties, wanted);\n", "    place += ties;\n"),
                edit("top_k.cu", CHOICE, "        if (rank <= kth && place < k)\n"),
            ],
            rust: Some(|stages| Stages {
                top_k: |x, k, out| {
                    plain::top_k(x, k, out, |entries, k| {
                        let mut sorted = entries.clone();
                        sorted.sort_unstable();
                        let kth = sorted[k - 1].0;
                        entries.retain(|entry| entry.0 <= kth);
                    });
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "m10-buffer-of-64",
        bug: "B23 sglang PR #37893",
        what: "no more than 64 columns that tie with the k-th are kept",
        op: TOP_K,
        fault: Fault::Kernels(Edits {
            opencl: &[edit(
                "top_k.cl",
                CHOICE,
                "        if (rank < kth || (rank == kth && ties++ < min(wanted, 64u)))\n",
            )],
            cuda: &[edit(
                "top_k.cu",
                CHOICE,
                "        if (rank < kth || (rank == kth && ties++ < min(wanted, 64u)))\n",
            )],
            rust: Some(|stages| Stages {
                top_k: |x, k, out| {
                    plain::top_k(x, k, out, |entries, k| {
                        entries.sort_unstable();
                        let kth = entries[k - 1].0;
                        let lower = entries.iter().filter(|entry| entry.0 < kth).count();
                        entries.truncate(lower + (k - lower).min(64));
                    });
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "b1-rows-65535",
        bug: "B1 ggml 5f7ee944",
        what: "rows beyond the 65535th are not sorted",
        op: ARGSORT,
        fault: Fault::Kernels(Edits {
            opencl: &[edit(
                "argsort.cl",
                "if (row < rows && col < cols)",
                "if (row < min(rows, 65535ul) && col < cols)",
            )],
            cuda: &[edit(
                "argsort.cu",
                "if (row < rows && col < cols)",
                "if (row < min(rows, 65535ull) && col < cols)",
            )],
            rust: Some(|stages| Stages {
                argsort: |x, order, keys, out| {
                    let most = out.len().min(65535 * 4 * x.tensor.shape[0]);
                    (Stages::default().argsort)(x, order, keys, &mut out[..most]);
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "b13-last-merge",
        bug: "B13 MLX 7f914365f",
        what: "rows of more than 65536 columns are sorted in parts that nobody merges",
        op: ARGSORT,
        fault: Fault::Kernels(Edits {
            opencl: &[edit(
                "argsort.cl",
                "    if (pair >= rows * (padded / 2))\n",
                "    if (pair >= rows * (padded / 2) || size > 65536)\n",
            )],
            cuda: &[edit(
                "argsort.cu",
                "    if (pair >= rows * (padded / 2))\n",
                "    if (pair >= rows * (padded / 2) || size > 65536)\n",
            )],
            rust: Some(|stages| Stages {
                argsort: |x, order, _, out| {
                    plain::argsort(x, order, out, |entries| {
                        entries.chunks_mut(65536).for_each(<[_]>::sort_unstable);
                    });
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "b15-strides-mixed",
        bug: "B15 MLX 2615660e6",
        what: "keys are read with the strides of the output",
        op: ARGSORT,
        fault: Fault::Kernels(Edits {
            opencl: &[edit(
                "argsort.cl",
                "real ? ((__global const uint *)(x + row_offset(x_view, dims, row)))",
                "real ? ((__global const uint *)(x + row_offset(out_view, dims, row)))",
            )],
            cuda: &[edit(
                "argsort.cu",
                "row_offset(x_view, dims, row < rows ? row : 0)",
                "row_offset(out_view, dims, row < rows ? row : 0)",
            )],
            rust: Some(|stages| Stages {
                argsort: |x, order, keys, out| {
                    let tensor = Tensor::whole("x", ElemType::F32, x.tensor.shape, Role::Input);
                    (Stages::default().argsort)(View { tensor: &tensor, bytes: x.bytes }, order, keys, out);
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "b18-direction-lost",
        bug: "B18 burn 3e4af4169",
        what: "a single row is sorted upwards, whatever was asked for",
        op: ARGSORT,
        fault: Fault::Kernels(Edits {
            opencl: &[edit(
                "argsort.cl",
                "key[i] = sort_key(bits, descending);",
                "key[i] = sort_key(bits, rows > 1 ? descending : 0);",
            )],
            cuda: &[edit(
                "argsort.cu",
                "entry_of(values, i % padded, cols, descending)",
                "entry_of(values, i % padded, cols, rows > 1 ? descending : 0)",
            )],
            rust: Some(|stages| Stages {
                argsort: |x, order, keys, out| {
                    let is_single = x.tensor.elements() == x.tensor.shape[0];
                    (Stages::default().argsort)(x, if is_single { Order::Asc } else { order }, keys, out);
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "b21-sixteen-places",
        bug: "B21 PyTorch #83656",
        what: "the seventeenth place and those behind it are zero",
        op: TOP_K,
        fault: Fault::Kernels(Edits {
            opencl: &[edit(
                "top_k.cl",
                "            indices[place++] = col;\n",
                "            indices[place] = place < 16 ? col : 0, ++place;\n",
            )],
            cuda: &[edit(
                "top_k.cu",
                "            indices[place++] = col;\n",
                "            indices[place] = place < 16 ? col : 0, ++place;\n",
            )],
            rust: Some(|stages| Stages {
                top_k: |x, k, out| {
                    (Stages::default().top_k)(x, k, out);
                    out.chunks_exact_mut(4 * k).for_each(|row| row[4 * k.min(16)..].fill(0));
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "b23-counts-of-4096",
        bug: "B23 sglang #36807",
        what: "no more than 4096 columns with the same leading byte are looked at",
        op: TOP_K,
        fault: Fault::Kernels(Edits {
            opencl: &[
                edit("top_k.cl", "count[byte] < wanted)", "min(count[byte], 4096u) < wanted)"),
                edit("top_k.cl", "wanted -= count[byte++];", "wanted -= min(count[byte++], 4096u);"),
                edit("top_k.cl", "        if (rank < kth ||", "        if (place < k) if (rank < kth ||"),
            ],
            cuda: &[
                edit("top_k.cu", "count[byte] < wanted)", "min(count[byte], 4096u) < wanted)"),
                edit("top_k.cu", "wanted -= count[byte++];", "wanted -= min(count[byte++], 4096u);"),
                edit("top_k.cu", "        if (rank < kth ||", "        if (place < k) if (rank < kth ||"),
            ],
            rust: Some(|stages| Stages {
                top_k: |x, k, out| {
                    plain::top_k(x, k, out, |entries, k| {
                        let mut sorted = entries.clone();
                        sorted.sort_unstable();
                        let byte = sorted[k - 1].0 >> 24;
                        let mut kept = 0;
                        entries.retain(|entry| {
                            let is_candidate = entry.0 >> 24 == byte;
                            kept += usize::from(is_candidate);
                            entry.0 >> 24 < byte || is_candidate && kept <= 4096
                        });
                        entries.sort_unstable();
                    });
                },
                ..stages
            }),
        }),
    },
    // Stages of the embedded device have no barriers, and no lanes beyond the columns.
    Mutant {
        id: "b25-no-barrier",
        bug: "B25 ik_llama fbcc743c7",
        what: "columns are counted while others still clear the counts",
        op: TOP_K,
        fault: kernels(
            &[edit(
                "top_k.cl",
                "            count[i] = 0;\n        barrier(CLK_LOCAL_MEM_FENCE);\n",
                "            count[i] = 0;\n",
            )],
            &[edit("top_k.cu", "            count[i] = 0;\n        __syncthreads();\n", "            count[i] = 0;\n")],
        ),
    },
    Mutant {
        id: "b27-lanes-beyond",
        bug: "B27 ggml 4a25293e",
        what: "columns are rounded up to a multiple of 64, and what lies behind a row is chosen from as well",
        op: TOP_K,
        fault: kernels(
            &[edit(
                "top_k.cl",
                "           const uint cols, const uint k)\n{\n",
                "           const uint width, const uint k)\n{\n    const uint cols = (width + 63) / 64 * 64;\n",
            )],
            &[edit(
                "top_k.cu",
                "const u32 cols,\n             const u32 k)\n{\n",
                "const u32 width,\n             const u32 k)\n{\n    const u32 cols = (width + 63) / 64 * 64;\n",
            )],
        ),
    },
];
