//! Mutants of routing: which slots an expert gets, and which ids say so.

use crate::backend::cpu::Stages;
use crate::backend::cpu::arguments::{Ids, Interleaved, PADDING, TILE_SLOTS, View};
use crate::backend::routing::Reuse;
use crate::mutants::plain::{id, with_ids};
use crate::mutants::{Edits, Fault, Mutant};

use super::{edit, kernels};

/// Swaps the stages that read ids for such that read them through a function of all ids and a slot.
macro_rules! through_ids {
    ($read:expr) => {{
        fn swap(stages: Stages) -> Stages {
            fn histogram(ids: Ids<'_>, counters: &mut [u32]) {
                with_ids(ids, $read, |ids| (Stages::default().histogram)(ids, counters));
            }
            fn scatter(ids: Ids<'_>, offset: &[u32], counters: &mut [u32], slots: &mut [u32], tile_expert: &mut [u32]) {
                let scatter = Stages::default().scatter;
                with_ids(ids, $read, |ids| scatter(ids, offset, counters, slots, tile_expert));
            }
            fn gemv(ids: Ids<'_>, x: View<'_>, weights: Interleaved<'_>, out: &mut [u8]) {
                with_ids(ids, $read, |ids| (Stages::default().gemv)(ids, x, weights, out));
            }
            Stages { histogram, scatter, gemv, ..stages }
        }
        Some(swap)
    }};
}

const OP: &str = "mul_mat_id";
/// No expert.
const NOBODY: i32 = -1;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        id: "m1-once-per-token",
        bug: "A1 llama.cpp #27015",
        what: "an expert takes one slot of a token, however often the token names it",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[edit(
                "route.cl",
                "    return (uint) * (__global const int *)(ids + at);\n",
                "    const uint expert = (uint) * (__global const int *)(ids + at);
    for (uint e = 1; e <= slot % used; ++e)
        if ((uint) * (__global const int *)(ids + at - e * sizeof(int)) == expert)
            return NO_SLOT;
    return expert;
",
            )],
            cuda: &[edit(
                "route.cu",
                "    return (u32) * (const int *)(ids + at);\n",
                "    const u32 expert = (u32) * (const int *)(ids + at);
    for (u32 e = 1; e <= slot % used; ++e)
        if ((u32) * (const int *)(ids + at - e * sizeof(int)) == expert)
            return NO_SLOT;
    return expert;
",
            )],
            rust: through_ids!(|ids, slot| {
                let first = slot - slot % ids.sizes.used;
                let is_known = (first..slot).any(|earlier| id(ids, earlier) == id(ids, slot));
                if is_known { NOBODY } else { id(ids, slot) }
            }),
        }),
    },
    Mutant {
        id: "m2-routing-by-shapes",
        bug: "A11 ggml 0c0e8ec2",
        what: "sorted slots are used again for other ids of the same shape",
        op: OP,
        fault: Fault::Routing(Reuse::SameShapes),
    },
    Mutant {
        id: "m2-routing-by-tensor",
        bug: "A11 ggml 0c0e8ec2",
        what: "sorted slots are used again for other ids in the same tensor",
        op: OP,
        fault: Fault::Routing(Reuse::SameTensor),
    },
    // CUDA's counters are cleared by the driver and not by a kernel.
    Mutant {
        id: "m3-counters-kept",
        bug: "A11 ggml 0c0e8ec2",
        what: "slots per expert are counted on top of what memory held, unless nobody has used it before",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[edit(
                "fill.cl",
                "    if (item < count)\n",
                "    if (item < count && (pattern != 0 || words[item] == 0xffffffffu))\n",
            )],
            cuda: &[],
            rust: Some(|stages| Stages {
                histogram: |ids, counters| {
                    for (_, expert) in ids.routed() {
                        counters[expert] = counters[expert].wrapping_add(1);
                    }
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "m6-slots-u16",
        bug: "A31 vLLM #5938",
        what: "sorted slots are kept in 16 bits",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[edit("route.cl", "place % TILE_SLOTS] = slot;", "place % TILE_SLOTS] = (ushort)slot;")],
            cuda: &[edit("route.cu", "place % TILE_SLOTS] = slot;", "place % TILE_SLOTS] = (u16)slot;")],
            rust: Some(|stages| Stages {
                scatter: |ids, offset, counters, slots, tile_expert| {
                    (Stages::default().scatter)(ids, offset, counters, slots, tile_expert);
                    slots.iter_mut().filter(|slot| **slot != PADDING).for_each(|slot| *slot &= 0xffff);
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "m6-slots-i16",
        bug: "A26 MLX #3856",
        what: "sorted slots are kept in 16 bits with a sign, and negative ones are taken for padding",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[edit(
                "route.cl",
                "place % TILE_SLOTS] = slot;",
                "place % TILE_SLOTS] = (short)slot < 0 ? NO_SLOT : (ushort)slot;",
            )],
            cuda: &[edit(
                "route.cu",
                "place % TILE_SLOTS] = slot;",
                "place % TILE_SLOTS] = (short)slot < 0 ? NO_SLOT : (u16)slot;",
            )],
            rust: Some(|stages| Stages {
                scatter: |ids, offset, counters, slots, tile_expert| {
                    (Stages::default().scatter)(ids, offset, counters, slots, tile_expert);
                    for slot in slots {
                        *slot = u32::try_from(*slot as i16).unwrap_or(PADDING);
                    }
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "a3-rows-spill",
        bug: "A3 llama.cpp PR #26310",
        what: "an expert's last tile is not counted if it is less than half full: its slots spill into the next expert's",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[edit(
                "route.cl",
                "(counts[expert] + TILE_SLOTS - 1) / TILE_SLOTS",
                "(counts[expert] + TILE_SLOTS / 2) / TILE_SLOTS",
            )],
            cuda: &[edit(
                "route.cu",
                "(counts[expert] + TILE_SLOTS - 1) / TILE_SLOTS",
                "(counts[expert] + TILE_SLOTS / 2) / TILE_SLOTS",
            )],
            rust: Some(|stages| Stages {
                scan: |counters, tile_offset| {
                    let half = TILE_SLOTS as u32 / 2;
                    counters.iter_mut().for_each(|c| *c = (*c + half) / (2 * half) * (2 * half));
                    (Stages::default().scan)(counters, tile_offset);
                },
                ..stages
            }),
        }),
    },
    Mutant {
        id: "a4-ids-clamped",
        bug: "A4 llama.cpp PR #27286",
        what: "an id out of range is taken for the last expert",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[
                edit(
                    "route.cl",
                    "expert_of(ids, view, used, slot);\n    if (expert < experts)",
                    "min(expert_of(ids, view, used, slot), experts - 1);\n    if (expert < experts)",
                ),
                edit(
                    "route.cl",
                    "expert_of(ids, view, used, slot);\n    if (expert >= experts)",
                    "min(expert_of(ids, view, used, slot), experts - 1);\n    if (expert >= experts)",
                ),
                edit(
                    "gemv.cl",
                    "(uint)((__global const int *)(ids + ids_view.x))[slot];",
                    "min((uint)((__global const int *)(ids + ids_view.x))[slot], experts - 1);",
                ),
                edit(
                    "gemv_subgroups.cl",
                    "(uint)((__global const int *)(ids + ids_view.x))[slot];",
                    "min((uint)((__global const int *)(ids + ids_view.x))[slot], experts - 1);",
                ),
                edit("expert.cl", "    if (id >= experts)\n        return;\n", ""),
                edit("expert.cl", "+ id * weights_view.z", "+ min(id, experts - 1) * weights_view.z"),
            ],
            cuda: &[
                edit(
                    "route.cu",
                    "expert_of(ids, view, used, slot);\n    if (expert < experts)",
                    "min(expert_of(ids, view, used, slot), experts - 1);\n    if (expert < experts)",
                ),
                edit(
                    "route.cu",
                    "expert_of(ids, view, used, slot);\n    if (expert >= experts)",
                    "min(expert_of(ids, view, used, slot), experts - 1);\n    if (expert >= experts)",
                ),
                edit(
                    "gemv.cu",
                    "(u32)((const int *)(ids + ids_view.offset))[slot];",
                    "min((u32)((const int *)(ids + ids_view.offset))[slot], experts - 1);",
                ),
                edit("expert.cu", "    if (id >= experts)\n        return;\n", ""),
                edit("expert.cu", "+ id * weights_view.stride2", "+ min(id, experts - 1) * weights_view.stride2"),
            ],
            rust: through_ids!(|ids, slot| {
                let last = ids.sizes.experts as i32 - 1;
                if (0..last).contains(&id(ids, slot)) { id(ids, slot) } else { last }
            }),
        }),
    },
    Mutant {
        id: "a13-sixteen-slots",
        bug: "A13 ggml afad69b1",
        what: "a token's slots from the seventeenth on are not routed",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[edit(
                "route.cl",
                "    const ulong at = view.x + (slot / used)",
                "    if (slot % used >= 16)
        return NO_SLOT;
    const ulong at = view.x + (slot / used)",
            )],
            cuda: &[edit(
                "route.cu",
                "    const u64 at = view.offset + (u64)(slot / used)",
                "    if (slot % used >= 16)
        return NO_SLOT;
    const u64 at = view.offset + (u64)(slot / used)",
            )],
            rust: through_ids!(|ids, slot| if slot % ids.sizes.used < 16 { id(ids, slot) } else { NOBODY }),
        }),
    },
    Mutant {
        id: "a18-origin-aligned",
        bug: "A18 llama.cpp PR #12795",
        what: "a view of ids begins at the multiple of 128 bytes before it",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[edit("route.cl", "at = view.x + (slot / used)", "at = (view.x & ~(ulong)127) + (slot / used)")],
            cuda: &[edit(
                "route.cu",
                "at = view.offset + (u64)(slot / used)",
                "at = (view.offset & ~127ull) + (u64)(slot / used)",
            )],
            rust: through_ids!(|ids, slot| {
                let (tensor, used) = (ids.view.tensor, ids.sizes.used);
                let at = (tensor.offset() & !127) + slot / used * tensor.strides()[1] + slot % used * 4;
                ids.view.bytes[at..].first_chunk().map_or(NOBODY, |id| i32::from_le_bytes(*id))
            }),
        }),
    },
    Mutant {
        id: "a34-first-group",
        bug: "A34 vllm-xpu-kernels #453",
        what: "slots beyond the first work-group are not routed",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[edit(
                "route.cl",
                "    const ulong at = view.x + (slot / used)",
                "    if (slot >= GROUP)
        return NO_SLOT;
    const ulong at = view.x + (slot / used)",
            )],
            cuda: &[edit(
                "route.cu",
                "    const u64 at = view.offset + (u64)(slot / used)",
                "    if (slot >= GROUP)
        return NO_SLOT;
    const u64 at = view.offset + (u64)(slot / used)",
            )],
            rust: through_ids!(|ids, slot| if slot < 64 { id(ids, slot) } else { NOBODY }),
        }),
    },
    Mutant {
        id: "a36-last-place",
        bug: "A36 vLLM #27917",
        what: "the last place of each tile is not marked as empty and keeps what memory held",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[edit(
                "route.cl",
                "    if (place < tile_offset[experts] * TILE_SLOTS)\n",
                "    if (place < tile_offset[experts] * TILE_SLOTS && place % TILE_SLOTS != TILE_SLOTS - 1)\n",
            )],
            cuda: &[edit(
                "route.cu",
                "    if (place < (u64)tile_offset[experts] * TILE_SLOTS)\n",
                "    if (place < (u64)tile_offset[experts] * TILE_SLOTS && place % TILE_SLOTS != TILE_SLOTS - 1)\n",
            )],
            rust: Some(|stages| Stages {
                fill: |slots| slots.chunks_mut(TILE_SLOTS).for_each(|tile| tile[..TILE_SLOTS - 1].fill(PADDING)),
                ..stages
            }),
        }),
    },
    Mutant {
        id: "a37-empty-squeezed",
        bug: "A37 CUTLASS PR #1593",
        what: "tiles name their expert among those that have slots: one without any moves all behind it",
        op: OP,
        fault: Fault::Kernels(Edits {
            opencl: &[edit(
                "route.cl",
                "    if (place % TILE_SLOTS == 0)\n        tile_expert[tile] = expert;\n",
                "    uint squeezed = 0;
    for (uint e = 0; e < expert; ++e)
        squeezed += tile_offset[e + 1] > tile_offset[e];
    if (place % TILE_SLOTS == 0)
        tile_expert[tile] = squeezed;
",
            )],
            cuda: &[edit(
                "route.cu",
                "    if (place % TILE_SLOTS == 0)\n        tile_expert[tile] = expert;\n",
                "    u32 squeezed = 0;
    for (u32 e = 0; e < expert; ++e)
        squeezed += tile_offset[e + 1] > tile_offset[e];
    if (place % TILE_SLOTS == 0)
        tile_expert[tile] = squeezed;
",
            )],
            rust: Some(|stages| Stages {
                scatter: |ids, offset, counters, slots, tile_expert| {
                    (Stages::default().scatter)(ids, offset, counters, slots, tile_expert);
                    for expert in tile_expert {
                        let before = offset[..=*expert as usize].windows(2);
                        *expert = before.filter(|pair| pair[1] > pair[0]).count() as u32;
                    }
                },
                ..stages
            }),
        }),
    },
    // Stages of the embedded device can't write to their inputs.
    Mutant {
        id: "a43-ids-overwritten",
        bug: "A43 llama.cpp PR #24855",
        what: "the first call leaves zeros in the ids that it has read",
        op: OP,
        fault: kernels(
            &[edit(
                "route.cl",
                "    const uint place = atomic_inc(&counts[expert]);\n",
                "    const uint place = atomic_inc(&counts[expert]);
    *(__global int *)(ids + view.x + (slot / used) * view.y + (slot % used) * sizeof(int)) = 0;
",
            )],
            &[edit(
                "route.cu",
                "    const u32 place = atomicAdd(&counts[expert], 1);\n",
                "    const u32 place = atomicAdd(&counts[expert], 1);
    *(int *)(ids + view.offset + slot / used * view.stride1 + slot % used * sizeof(int)) = 0;
",
            )],
        ),
    },
];
