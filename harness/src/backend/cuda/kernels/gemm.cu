// Multiplies MXFP4 experts with the gathered activations of their slots: many tokens.
//
// In:   scale, code: weights [k, rows, experts] as convert leaves them; k is a multiple of 32
//       gathered[place][k] f32, from reorder; tile_offset, tile_expert, sorted: see route.cu
// Out:  out [rows, used, tokens] f32, a view; slots that no tile holds are not written
//
// A block computes TILE_ROWS rows of one expert for the TILE_SLOTS slots of one tile, TILE_K values of k at a time.
// Each thread has one row and running sums for a share of the slots; the activations of a step are shared.
//
// Arithmetic: w = code * scale in f32; every sum runs over k in order, one multiplication and addition each (fused or
// not), so a result depends neither on the slot's place in its tile nor on the tile.
// Guarded: rows beyond `rows` (last tile of rows); places without a slot, which never write; blocks beyond the
// tiles in use; experts * k * rows beyond 32 bits.

#include "common.cuh"
#include "mxfp4.cuh"

// Sums of a thread.
#define SHARE (TILE_SLOTS * TILE_ROWS / GROUP)

KERNEL gemm(const u8 *scale, const u32 *code, const u32 k, const u32 rows, const u32 experts, const u32 used,
            const u32 *tile_offset, const u32 *tile_expert, const u32 *sorted, const float *gathered, u8 *out,
            const View out_view)
{
    __shared__ float x[TILE_K][TILE_SLOTS];

    const u32 row_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const u64 tile = blockIdx.x / row_tiles;
    if (tile >= tile_offset[experts])
        return;

    const u32 row = blockIdx.x % row_tiles * TILE_ROWS + threadIdx.x % TILE_ROWS;
    const u32 first = threadIdx.x / TILE_ROWS * SHARE; // of this thread's slots
    const u64 expert = tile_expert[tile];
    const u64 first_place = tile * TILE_SLOTS;
    const u64 blocks = k / 32;

    float sum[SHARE];
    for (u32 s = 0; s < SHARE; ++s)
        sum[s] = 0.0f;

    for (u32 k0 = 0; k0 < k; k0 += TILE_K) {
        for (u32 i = threadIdx.x; i < TILE_SLOTS * TILE_K; i += GROUP)
            x[i % TILE_K][i / TILE_K] = gathered[(first_place + i / TILE_K) * k + k0 + i % TILE_K];
        __syncthreads();

        if (row < rows) {
            const u64 block = expert * blocks + k0 / 32;
            const float block_scale = e8m0(scale[block * rows + row]);
            for (u32 j = 0; j < TILE_K / 8; ++j) {
                const u32 word = code[(block * 4 + k0 % 32 / 8 + j) * rows + row];
                for (u32 i = 0; i < 8; ++i) {
                    const float w = e2m1(word >> (4 * i)) * block_scale;
                    for (u32 s = 0; s < SHARE; ++s)
                        sum[s] += w * x[8 * j + i][first + s];
                }
            }
        }
        // Nobody loads the next step while another still reads this one.
        __syncthreads();
    }

    if (row >= rows)
        return;
    for (u32 s = 0; s < SHARE; ++s) {
        const u32 slot = sorted[first_place + first + s];
        if (slot == NO_SLOT)
            continue;
        const u64 at = out_view.offset + slot % used * out_view.stride1 + slot / used * out_view.stride2;
        ((float *)(out + at))[row] = sum[s];
    }
}
