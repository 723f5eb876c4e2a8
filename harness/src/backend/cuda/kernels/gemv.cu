// Multiplies MXFP4 experts with the activations of a single token.
//
// In:   scale, code: weights [k, rows, experts] as convert leaves them; k is a multiple of 32
//       x [k, per_token, 1] f32, a view: slot e uses row e mod per_token
//       ids [used, 1] i32, a view
// Out:  out [rows, used, 1] f32, a view; a slot whose id is outside of 0..experts is not written
//
// A block computes VECTOR_LANES rows of one slot. Each lane has one row; LANE_GROUPS warps take the blocks of k in
// turn, each with the activations of its block in shared memory, and their partial sums meet there. A block is loaded
// while the one before it is multiplied.
//
// Arithmetic: codes are unpacked two at a time as f16, which has all their values; the rest is f32. 32 products code * x
// are summed one after the other, the scale is applied to the sum of the block, the blocks of a lane are summed in order,
// then the lane groups in order.
// Guarded: rows beyond `rows`, which compute the last row again and never write; ids out of range; a scale meets a zero
// sum as 0 * NaN only, since every other scale is finite; experts * k * rows beyond 32 bits.

#include "common.cuh"
#include "mxfp4.cuh"

#define LANE_GROUPS (GROUP / VECTOR_LANES)

KERNEL gemv(const u8 *scale, const u32 *code, const u32 k, const u32 rows, const u32 experts, const u8 *x,
            const View x_view, const u32 per_token, const u8 *ids, const View ids_view, u8 *out, const View out_view)
{
    __shared__ float4 activations[LANE_GROUPS][8];
    __shared__ float partial[LANE_GROUPS][VECTOR_LANES];

    const u32 row_tiles = (rows + VECTOR_LANES - 1) / VECTOR_LANES;
    const u64 slot = blockIdx.x / row_tiles;
    const u32 lane = threadIdx.x % VECTOR_LANES;
    const u32 group = threadIdx.x / VECTOR_LANES;
    const u32 row = blockIdx.x % row_tiles * VECTOR_LANES + lane;
    const u32 readable = row < rows ? row : rows - 1;

    const u64 expert = (u32)((const int *)(ids + ids_view.offset))[slot];
    if (expert >= experts)
        return;
    const u32 blocks = k / 32;
    const float *x_row = (const float *)(x + x_view.offset + slot % per_token * x_view.stride1);

    // Where this lane's next block begins.
    const u64 first = (expert * blocks + group) * rows;
    const u32 *next_code = code + first * 4 + readable;
    const u8 *next_scale = scale + first + readable;
    const float *next_x = x_row + group * 32 + lane;
    u32 words[4], scale_byte;
    float activation;
    const auto load = [&] {
        for (u32 j = 0; j < 4; ++j)
            words[j] = next_code[(u64)j * rows];
        scale_byte = *next_scale;
        activation = *next_x;
        next_code += (u64)LANE_GROUPS * 4 * rows;
        next_scale += (u64)LANE_GROUPS * rows;
        next_x += LANE_GROUPS * 32;
    };

    float sum = 0.0f;
    if (group < blocks)
        load();
    for (u32 b = group; b < blocks; b += LANE_GROUPS) {
        const u32 now[4] = {words[0], words[1], words[2], words[3]};
        const float block_scale = e8m0(scale_byte);
        // A warp reads what it wrote itself, after all lanes have written and before the next block is written.
        __syncwarp();
        ((float *)activations[group])[lane] = activation;
        __syncwarp();
        if (b + LANE_GROUPS < blocks)
            load();

        float block_sum = 0.0f;
        for (u32 j = 0; j < 4; ++j) {
            const float4 first = activations[group][2 * j], second = activations[group][2 * j + 1];
            const float x0[4] = {first.x, first.y, first.z, first.w};
            const float x4[4] = {second.x, second.y, second.z, second.w};
            for (int i = 0; i < 4; ++i) {
                float w0, w4;
                split_f16(e2m1_pair_f16(now[j], i), &w0, &w4);
                block_sum += w0 * x0[i];
                block_sum += w4 * x4[i];
            }
        }
        sum += block_scale * block_sum;
    }
    partial[group][lane] = sum;
    __syncthreads();

    if (group != 0 || row >= rows)
        return;
    float total = partial[0][lane];
    for (u32 g = 1; g < LANE_GROUPS; ++g)
        total += partial[g][lane];
    ((float *)(out + out_view.offset + slot * out_view.stride1))[row] = total;
}
