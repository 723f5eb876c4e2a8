// gemv for devices with sub-groups: the same arguments, lanes joined without local memory.
//
// In:   scale, code: weights [k, rows, experts] as convert leaves them; k is a multiple of 32
//       x [k, per_token, 1] f32, a view: slot e uses row e mod per_token
//       ids [used, 1] i32, a view
// Out:  out [rows, used, 1] f32, a view; a slot whose id is outside of 0..experts is not written
//
// A work-group computes VECTOR_LANES rows of one slot, a sub-group one of them after the other: its lanes take the
// blocks of k in turn, and their sums meet in a reduction. How many sub-groups there are, and how large each is, is
// asked here: a sub-group may have any size, one included, and the last of a work-group its own.
//
// Arithmetic, all f32: 32 products code * x are summed in order, the scale is applied to the sum of the block, and the
// sums of all blocks are added in an order that size and reduction make: one rounded addition per further block.
// Guarded: as in gemv; a whole sub-group comes to each reduction, since row and expert are the same for all of it.

#ifdef cl_khr_subgroups
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#endif
#pragma OPENCL FP_CONTRACT OFF

#include "mxfp4.clh"

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void gemv_subgroups(__global const uchar *scale, __global const uint *code, const uint k, const uint rows,
                    const uint experts, __global const uchar *x, const ulong4 x_view, const uint per_token,
                    __global const uchar *ids, const ulong4 ids_view, __global uchar *out, const ulong4 out_view)
{
    const uint row_tiles = (rows + VECTOR_LANES - 1) / VECTOR_LANES;
    const ulong slot = get_group_id(0) / row_tiles;
    const uint first_row = get_group_id(0) % row_tiles * VECTOR_LANES;
    const uint end_row = min(first_row + VECTOR_LANES, rows);

    const uint expert = (uint)((__global const int *)(ids + ids_view.x))[slot];
    if (expert >= experts)
        return;
    const uint blocks = k / 32;
    __global const float *activations = (__global const float *)(x + x_view.x + slot % per_token * x_view.y);
    __global float *results = (__global float *)(out + out_view.x + slot * out_view.y);

    for (uint row = first_row + get_sub_group_id(); row < end_row; row += get_num_sub_groups()) {
        float sum = 0.0f;
        for (uint b = get_sub_group_local_id(); b < blocks; b += get_sub_group_size()) {
            const ulong block = (ulong)expert * blocks + b;
            float block_sum = 0.0f;
            for (uint j = 0; j < 4; ++j) {
                const uint word = code[(block * 4 + j) * rows + row];
                for (uint i = 0; i < 8; ++i)
                    block_sum += E2M1[(word >> (4 * i)) & 15u] * activations[(ulong)b * 32 + 8 * j + i];
            }
            sum += e8m0(scale[block * rows + row]) * block_sum;
        }
        const float total = sub_group_reduce_add(sum);
        if (get_sub_group_local_id() == 0)
            results[row] = total;
    }
}
