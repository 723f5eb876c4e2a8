// Sorts the slots of all tokens by expert, in four launches: histogram, scan, pad, scatter.
//
// In:   ids [used, tokens] i32, a view: the expert of slot `token * used + e`. The stride between tokens may be
//       larger than `used`. The number of experts is that of the weights, never a stride of the ids.
// Out:  tile_offset[experts + 1]: first tile of each expert; the last entry is the number of tiles in use
//       tile_expert[tile]: whose slots the tile holds
//       sorted[tile * TILE_SLOTS + place]: slot numbers, NO_SLOT in places left over
//
// A tile holds slots of one expert only. Every slot with an id in 0..experts appears exactly once; others appear
// nowhere. The order of slots inside an expert depends on the order of atomics: no result may depend on it.
// The host clears `counts` before histogram, so nothing depends on what an earlier call left there.
// `used` is free: a thread takes one slot, so no block grows with it. Slots and places are counted in 32 bits, which
// the host checks.

#include "common.cuh"

// The expert of a slot; out of range, negative ids included, if not below `experts`.
__device__ __forceinline__ u32 expert_of(const u8 *ids, const View view, const u32 used, const u32 slot)
{
    const u64 at = view.offset + (u64)(slot / used) * view.stride1 + (u64)(slot % used) * sizeof(int);
    return (u32) * (const int *)(ids + at);
}

// Counts the slots of each expert.
KERNEL histogram(const u8 *ids, const View view, const u32 used, const u32 slots, const u32 experts, u32 *counts)
{
    const u64 slot = thread_number();
    if (slot >= slots)
        return;
    const u32 expert = expert_of(ids, view, used, slot);
    if (expert < experts)
        atomicAdd(&counts[expert], 1);
}

// Gives each expert as many tiles as its slots need, in order of experts, and clears the counters for scatter.
// One block takes GROUP experts at a time: each thread's sum runs over its own expert and all before it.
KERNEL scan(u32 *counts, const u32 experts, u32 *tile_offset)
{
    __shared__ u32 sums[GROUP];
    const u32 lane = threadIdx.x;
    u32 before = 0; // tiles of earlier portions
    for (u64 first = 0; first < experts; first += GROUP) {
        const u64 expert = first + lane;
        const u32 tiles = expert < experts ? (counts[expert] + TILE_SLOTS - 1) / TILE_SLOTS : 0;
        sums[lane] = tiles;
        __syncthreads();
        for (u32 distance = 1; distance < GROUP; distance *= 2) {
            const u32 other = lane >= distance ? sums[lane - distance] : 0;
            __syncthreads();
            sums[lane] += other;
            __syncthreads();
        }
        if (expert < experts) {
            tile_offset[expert] = before + sums[lane] - tiles;
            counts[expert] = 0;
        }
        before += sums[GROUP - 1];
        // Nobody writes the next portion's sums while another still reads this one's last.
        __syncthreads();
    }
    if (lane == 0)
        tile_offset[experts] = before;
}

// Marks every place of every tile in use as empty.
KERNEL pad(const u32 *tile_offset, const u32 experts, u32 *sorted)
{
    const u64 place = thread_number();
    if (place < (u64)tile_offset[experts] * TILE_SLOTS)
        sorted[place] = NO_SLOT;
}

// Puts each slot into the next free place of its expert.
KERNEL scatter(const u8 *ids, const View view, const u32 used, const u32 slots, const u32 experts,
               const u32 *tile_offset, u32 *counts, u32 *tile_expert, u32 *sorted)
{
    const u64 slot = thread_number();
    if (slot >= slots)
        return;
    const u32 expert = expert_of(ids, view, used, slot);
    if (expert >= experts)
        return;
    const u32 place = atomicAdd(&counts[expert], 1);
    const u32 tile = tile_offset[expert] + place / TILE_SLOTS;
    sorted[(u64)tile * TILE_SLOTS + place % TILE_SLOTS] = slot;
    if (place % TILE_SLOTS == 0)
        tile_expert[tile] = expert;
}
