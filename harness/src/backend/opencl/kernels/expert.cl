// Multiplies experts with activations for every weight type but MXFP4, straight from the stored bytes.
//
// In:   weights [k, rows, experts] of the type `type`, a view; rows and blocks lie at any multiple of the type's
//       alignment, which is one byte for blocks
//       x [k, per_token, tokens] f32, a view: slot e of a token uses row e mod per_token
//       ids [used, tokens] i32, a view
// Out:  out [rows, used, tokens] f32, a view; a slot whose id is outside of 0..experts is not written
//
// One work-item per output element, rows fastest. Arithmetic: w in f32, exact but for the one
// rounding where a minimum is added (q4_1, q5_1, q4_K); then one rounded product and one rounded addition for each of
// the k values, in order. k is free for unblocked types.

#pragma OPENCL FP_CONTRACT OFF

enum {
    TYPE_F32,
    TYPE_F16,
    TYPE_BF16,
    TYPE_Q4_0,
    TYPE_Q4_1,
    TYPE_Q5_0,
    TYPE_Q5_1,
    TYPE_Q8_0,
    TYPE_Q4_K,
    TYPE_Q6_K
};

// An f16 at any address, in f32.
float load_f16(__global const uchar *at)
{
    const ushort bits = (ushort)(at[0] | at[1] << 8);
    return vload_half(0, (const half *)&bits);
}

// Code i of 32 in 16 bytes: low nibbles are the first half, high nibbles the second.
int four_bits(__global const uchar *codes, const uint i)
{
    return (codes[i % 16] >> (i / 16 * 4)) & 15;
}

// Code i of 32 in 4 bytes of fifth bits and 16 bytes of nibbles.
int five_bits(__global const uchar *codes, const uint i)
{
    return four_bits(codes + 4, i) | ((codes[i / 8] >> (i % 8)) & 1) << 4;
}

// Element i of a row, for each type.

float weight_f32(__global const uchar *row, const uint i)
{
    return ((__global const float *)row)[i];
}

float weight_f16(__global const uchar *row, const uint i)
{
    return vload_half(i, (__global const half *)row);
}

// The upper half of an f32.
float weight_bf16(__global const uchar *row, const uint i)
{
    return as_float((uint)((__global const ushort *)row)[i] << 16);
}

// f16 scale, codes of four bits.
float weight_q4_0(__global const uchar *row, const uint i)
{
    __global const uchar *block = row + (ulong)(i / 32) * 18;
    return load_f16(block) * (float)(four_bits(block + 2, i % 32) - 8);
}

// f16 scale, f16 minimum, codes of four bits.
float weight_q4_1(__global const uchar *row, const uint i)
{
    __global const uchar *block = row + (ulong)(i / 32) * 20;
    return load_f16(block) * (float)four_bits(block + 4, i % 32) + load_f16(block + 2);
}

// f16 scale, codes of five bits.
float weight_q5_0(__global const uchar *row, const uint i)
{
    __global const uchar *block = row + (ulong)(i / 32) * 22;
    return load_f16(block) * (float)(five_bits(block + 2, i % 32) - 16);
}

// f16 scale, f16 minimum, codes of five bits.
float weight_q5_1(__global const uchar *row, const uint i)
{
    __global const uchar *block = row + (ulong)(i / 32) * 24;
    return load_f16(block) * (float)five_bits(block + 4, i % 32) + load_f16(block + 2);
}

// f16 scale, signed bytes.
float weight_q8_0(__global const uchar *row, const uint i)
{
    __global const uchar *block = row + (ulong)(i / 32) * 34;
    return load_f16(block) * (float)(char)block[2 + i % 32];
}

// f16 scale, f16 scale of minima, 12 bytes of six-bit scales and minima, 128 bytes of nibbles. Eight sub-blocks of 32,
// each with a scale and a minimum; two of them share 32 bytes, the first one has the low nibbles. Bytes 0 to 3 hold
// scales 0 to 3 and bytes 4 to 7 minima 0 to 3, with the upper two bits of number 4 to 7 above them; bytes 8 to 11 hold
// the lower four bits of those, scales in low nibbles and minima in high ones.
float weight_q4_K(__global const uchar *row, const uint i)
{
    __global const uchar *block = row + (ulong)(i / 256) * 144;
    const uint sub_block = i % 256 / 32;
    __global const uchar *packed = block + 4 + sub_block % 4;
    const bool late = sub_block >= 4;
    const int scale = late ? (packed[8] & 15) | (packed[0] >> 6 << 4) : packed[0] & 63;
    const int minimum = late ? (packed[8] >> 4) | (packed[4] >> 6 << 4) : packed[4] & 63;
    const int code = (block[16 + sub_block / 2 * 32 + i % 32] >> (sub_block % 2 * 4)) & 15;
    return load_f16(block) * (float)scale * (float)code - load_f16(block + 2) * (float)minimum;
}

// 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales of 16 elements each, f16 scale. Each half of
// 128 elements has 64 bytes of nibbles, low ones first, and 32 bytes with a pair for each quarter, lowest first.
float weight_q6_K(__global const uchar *row, const uint i)
{
    __global const uchar *block = row + (ulong)(i / 256) * 210;
    const uint half_block = i % 256 / 128;
    const uint quarter = i % 128 / 32;
    const int low = (block[half_block * 64 + i % 64] >> (quarter / 2 * 4)) & 15;
    const int high = (block[128 + half_block * 32 + i % 32] >> (quarter * 2)) & 3;
    const int scale = (char)block[192 + i % 256 / 16];
    return load_f16(block + 208) * (float)scale * (float)((low | (high << 4)) - 32);
}

float weight(const uint type, __global const uchar *row, const uint i)
{
    switch (type) {
    case TYPE_F32: return weight_f32(row, i);
    case TYPE_F16: return weight_f16(row, i);
    case TYPE_BF16: return weight_bf16(row, i);
    case TYPE_Q4_0: return weight_q4_0(row, i);
    case TYPE_Q4_1: return weight_q4_1(row, i);
    case TYPE_Q5_0: return weight_q5_0(row, i);
    case TYPE_Q5_1: return weight_q5_1(row, i);
    case TYPE_Q8_0: return weight_q8_0(row, i);
    case TYPE_Q4_K: return weight_q4_K(row, i);
    default: return weight_q6_K(row, i);
    }
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
