// Multiplies MXFP4 experts with the activations of a single token.
//
// In:   scale, code: weights [k, rows, experts] as convert leaves them; k is a multiple of 32
//       x [k, per_token, 1] f32, a view: slot e uses row e mod per_token
//       ids [used, 1] i32, a view
// Out:  out [rows, used, 1] f32, a view; a slot whose id is outside of 0..experts is not written
//
// A work-group computes VECTOR_LANES rows of one slot. Each lane has one row; LANE_GROUPS groups of lanes take the
// blocks of k in turn, and their partial sums meet in local memory.
//
// Arithmetic, all f32: 32 products code * x are summed in order, the scale is applied to the sum of the block, the
// blocks of a lane are summed in order, then the lane groups in order.
// Guarded: rows beyond `rows`; ids out of range (no block is read, no barrier left out); a scale meets a zero sum
// as 0 * NaN only, since every other scale is finite; experts * k * rows beyond 32 bits.

#pragma OPENCL FP_CONTRACT OFF

#define LANE_GROUPS (GROUP / VECTOR_LANES)

#include "mxfp4.clh"

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void gemv(__global const uchar *scale, __global const uint *code, const uint k, const uint rows, const uint experts,
          __global const uchar *x, const ulong4 x_view, const uint per_token, __global const uchar *ids,
          const ulong4 ids_view, __global uchar *out, const ulong4 out_view)
{
    __local float partial[LANE_GROUPS][VECTOR_LANES];

    const uint row_tiles = (rows + VECTOR_LANES - 1) / VECTOR_LANES;
    const ulong slot = get_group_id(0) / row_tiles;
    const uint lane = get_local_id(0) % VECTOR_LANES;
    const uint group = get_local_id(0) / VECTOR_LANES;
    const uint row = get_group_id(0) % row_tiles * VECTOR_LANES + lane;

    const uint expert = (uint)((__global const int *)(ids + ids_view.x))[slot];
    const bool live = expert < experts && row < rows;
    const uint blocks = k / 32;
    const uint end = live ? blocks : 0;
    __global const float *activations = (__global const float *)(x + x_view.x + slot % per_token * x_view.y);

    float sum = 0.0f;
    for (uint b = group; b < end; b += LANE_GROUPS) {
        const ulong block = (ulong)expert * blocks + b;
        float block_sum = 0.0f;
        for (uint j = 0; j < 4; ++j) {
            const uint word = code[(block * 4 + j) * rows + row];
            for (uint i = 0; i < 8; ++i)
                block_sum += E2M1[(word >> (4 * i)) & 15u] * activations[(ulong)b * 32 + 8 * j + i];
        }
        sum += e8m0(scale[block * rows + row]) * block_sum;
    }
    partial[group][lane] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);

    if (group != 0 || !live)
        return;
    float total = partial[0][lane];
    for (uint g = 1; g < LANE_GROUPS; ++g)
        total += partial[g][lane];
    ((__global float *)(out + out_view.x + slot * out_view.y))[row] = total;
}
