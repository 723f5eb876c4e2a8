// gemm for devices with cl_khr_fp16: the same tiles and arguments, operands in f16.
//
// In:   scale, code: weights [k, rows, experts] as convert leaves them; k is a multiple of 32
//       gathered[place][k] f32, from reorder; tile_offset, tile_expert, sorted: see route.cl
// Out:  out [rows, used, tokens] f32, a view; slots that no tile holds are not written
//
// A work-group computes TILE_ROWS rows of one expert for the TILE_SLOTS slots of one tile, TILE_K values of k at a
// time. Each work-item has one row and a running sum per slot; the activations of a step are shared in local memory,
// rounded to f16.
//
// Arithmetic: w = code * scale, rounded to f16 once: exact from 2^-23 to 65504, beyond that infinite; nearer to
// zero it is rounded, and zero from 2^-25 down.
// TOGETHER products are added in f16, in order, one rounded product and one rounded addition each; these sums are added
// in f32, in order. A result depends neither on the slot's place in its tile nor on the tile.
// Guarded: as in gemm.

#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL FP_CONTRACT OFF

// Products that are added in f16: those of one word of codes.
#define TOGETHER 8

#include "mxfp4.clh"

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void gemm_half(__global const uchar *scale, __global const uint *code, const uint k, const uint rows,
               const uint experts, const uint used, __global const uint *tile_offset,
               __global const uint *tile_expert, __global const uint *sorted, __global const float *gathered,
               __global uchar *out, const ulong4 out_view)
{
    __local half x[TILE_K][TILE_SLOTS];

    const uint row_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const uint tile = get_group_id(0) / row_tiles;
    const uint lane = get_local_id(0);
    const uint row = get_group_id(0) % row_tiles * TILE_ROWS + lane;

    const bool in_use = tile < tile_offset[experts];
    const uint k_end = in_use ? k : 0;
    const ulong expert = in_use ? tile_expert[tile] : 0;
    const ulong first_place = (ulong)tile * TILE_SLOTS;
    const ulong blocks = k / 32;

    float sum[TILE_SLOTS];
    for (uint s = 0; s < TILE_SLOTS; ++s)
        sum[s] = 0.0f;

    for (uint k0 = 0; k0 < k_end; k0 += TILE_K) {
        for (uint i = lane; i < TILE_SLOTS * TILE_K; i += GROUP)
            x[i % TILE_K][i / TILE_K] = convert_half_rte(gathered[(first_place + i / TILE_K) * k + k0 + i % TILE_K]);
        barrier(CLK_LOCAL_MEM_FENCE);

        if (row < rows) {
            const ulong block = expert * blocks + k0 / 32;
            const float block_scale = e8m0(scale[block * rows + row]);
            for (uint j = 0; j < TILE_K / TOGETHER; ++j) {
                const uint word = code[(block * 4 + k0 % 32 / 8 + j) * rows + row];
                half w[TOGETHER];
                for (uint i = 0; i < TOGETHER; ++i)
                    w[i] = convert_half_rte(E2M1[(word >> (4 * i)) & 15u] * block_scale);
                for (uint s = 0; s < TILE_SLOTS; ++s) {
                    half together = w[0] * x[TOGETHER * j][s];
                    for (uint i = 1; i < TOGETHER; ++i)
                        together += w[i] * x[TOGETHER * j + i][s];
                    sum[s] += convert_float(together);
                }
            }
        }
        // Nobody loads the next step while another still reads this one.
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    if (!in_use || row >= rows)
        return;
    for (uint s = 0; s < TILE_SLOTS; ++s) {
        const uint slot = sorted[first_place + s];
        if (slot == NO_SLOT)
            continue;
        const ulong at = out_view.x + (ulong)(slot % used) * out_view.y + (ulong)(slot / used) * out_view.z;
        ((__global float *)(out + at))[row] = sum[s];
    }
}
