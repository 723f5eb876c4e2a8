// Multiplies experts with activations for every weight type but MXFP4, straight from the stored bytes.
//
// In:   weights [k, rows, experts] of the type `type`, a view; rows and blocks lie at any multiple of the type's
//       alignment, which is one byte for blocks
//       x [k, per_token, tokens] f32, a view: slot e of a token uses row e mod per_token
//       ids [used, tokens] i32, a view
// Out:  out [rows, used, tokens] f32, a view; a slot whose id is outside of 0..experts is not written
//
// One work-item per output element, rows fastest. Arithmetic: w in f32 (exact for every type here), then one rounded
// product and one rounded addition for each of the k values, in order. k is free for unblocked types.

#pragma OPENCL FP_CONTRACT OFF

enum { TYPE_F32, TYPE_F16, TYPE_Q4_0, TYPE_Q8_0 };

#define BLOCK 32
#define Q4_0_BYTES 18
#define Q8_0_BYTES 34

// An f16 at any address, in f32.
float load_f16(__global const uchar *at)
{
    const ushort bits = (ushort)(at[0] | at[1] << 8);
    return vload_half(0, (const half *)&bits);
}

// Element i of a row.
float weight(const uint type, __global const uchar *row, const uint i)
{
    if (type == TYPE_F32)
        return ((__global const float *)row)[i];
    if (type == TYPE_F16)
        return vload_half(i, (__global const half *)row);

    const uint in_block = i % BLOCK;
    if (type == TYPE_Q4_0) {
        __global const uchar *block = row + (ulong)(i / BLOCK) * Q4_0_BYTES;
        const uchar byte = block[2 + in_block % 16];
        const int value = in_block < 16 ? byte & 15 : byte >> 4;
        return load_f16(block) * (float)(value - 8);
    }
    __global const uchar *block = row + (ulong)(i / BLOCK) * Q8_0_BYTES;
    return load_f16(block) * (float)(char)block[2 + in_block];
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void expert(const uint type, __global const uchar *weights, const ulong4 weights_view, const uint k, const uint rows,
            const uint experts, __global const uchar *x, const ulong4 x_view, const uint per_token,
            __global const uchar *ids, const ulong4 ids_view, const uint used, const uint slots, __global uchar *out,
            const ulong4 out_view)
{
    const ulong item = get_global_id(0);
    if (item >= (ulong)slots * rows)
        return;

    const ulong row = item % rows;
    const ulong slot = item / rows;
    const ulong token = slot / used;
    const ulong e = slot % used; // slot in token

    const uint id = (uint)((__global const int *)(ids + ids_view.x + token * ids_view.y))[e];
    if (id >= experts)
        return;

    __global const uchar *w = weights + weights_view.x + row * weights_view.y + id * weights_view.z;
    __global const float *activations =
        (__global const float *)(x + x_view.x + e % per_token * x_view.y + token * x_view.z);
    float sum = 0.0f;
    for (uint i = 0; i < k; ++i)
        sum += weight(type, w, i) * activations[i];
    ((__global float *)(out + out_view.x + e * out_view.y + token * out_view.z))[row] = sum;
}
