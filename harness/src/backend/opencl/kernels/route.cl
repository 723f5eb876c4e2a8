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
// `used` is free: a work-item takes one slot, so no work-group grows with it.

// The expert of a slot; out of range, negative ids included, if not below `experts`.
uint expert_of(__global const uchar *ids, const ulong4 view, const uint used, const uint slot)
{
    const ulong at = view.x + (slot / used) * view.y + (ulong)(slot % used) * sizeof(int);
    return (uint) * (__global const int *)(ids + at);
}

// Counts the slots of each expert.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void histogram(__global const uchar *ids, const ulong4 view, const uint used, const uint slots, const uint experts,
               __global uint *counts)
{
    const uint slot = get_global_id(0);
    if (slot >= slots)
        return;
    const uint expert = expert_of(ids, view, used, slot);
    if (expert < experts)
        atomic_inc(&counts[expert]);
}

// Gives each expert as many tiles as its slots need, in order of experts, and clears the counters for scatter.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void scan(__global uint *counts, const uint experts, __global uint *tile_offset)
{
    if (get_global_id(0) != 0)
        return;
    uint tiles = 0;
    for (uint expert = 0; expert < experts; ++expert) {
        tile_offset[expert] = tiles;
        tiles += (counts[expert] + TILE_SLOTS - 1) / TILE_SLOTS;
        counts[expert] = 0;
    }
    tile_offset[experts] = tiles;
}

// Marks every place of every tile in use as empty.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void pad(__global const uint *tile_offset, const uint experts, __global uint *sorted)
{
    const uint place = get_global_id(0);
    if (place < tile_offset[experts] * TILE_SLOTS)
        sorted[place] = NO_SLOT;
}

// Puts each slot into the next free place of its expert.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void scatter(__global const uchar *ids, const ulong4 view, const uint used, const uint slots, const uint experts,
             __global const uint *tile_offset, __global uint *counts, __global uint *tile_expert,
             __global uint *sorted)
{
    const uint slot = get_global_id(0);
    if (slot >= slots)
        return;
    const uint expert = expert_of(ids, view, used, slot);
    if (expert >= experts)
        return;
    const uint place = atomic_inc(&counts[expert]);
    const uint tile = tile_offset[expert] + place / TILE_SLOTS;
    sorted[tile * TILE_SLOTS + place % TILE_SLOTS] = slot;
    if (place % TILE_SLOTS == 0)
        tile_expert[tile] = expert;
}
