// Gathers activation rows in the order of sorted slots, so that gemm reads a tile's rows one after the other.
//
// In:   x [k, per_token, tokens] f32, a view: slot e of a token uses row e mod per_token
//       sorted, tile_offset: see route.cu
// Out:  gathered[place][k], zeros where the place holds no slot; tiles not in use are left alone
//
// One block per place; a row may start at any multiple of 4 bytes and have any length. Rows are told by
// remainder, not by division: the two agree only where per_token is 1 or the number of slots per token.

#include "common.cuh"

KERNEL reorder(const u8 *x, const View view, const u32 k, const u32 per_token, const u32 used, const u32 experts,
               const u32 *tile_offset, const u32 *sorted, float *gathered)
{
    const u64 place = blockIdx.x;
    if (place >= (u64)tile_offset[experts] * TILE_SLOTS)
        return;

    float *to = gathered + place * k;
    const u32 slot = sorted[place];
    if (slot == NO_SLOT) {
        for (u32 i = threadIdx.x; i < k; i += GROUP)
            to[i] = 0.0f;
        return;
    }
    const u64 token = slot / used;
    const u64 row = slot % used % per_token;
    const float *from = (const float *)(x + view.offset + row * view.stride1 + token * view.stride2);
    for (u32 i = threadIdx.x; i < k; i += GROUP)
        to[i] = from[i];
}
