// Multiplies experts with activations for every weight type but MXFP4, straight from the stored bytes.
//
// In:   weights [k, rows, experts] of the type `type`, a view; rows and blocks lie at any multiple of the type's
//       alignment, which is one byte for blocks
//       x [k, per_token, tokens] f32, a view: slot e of a token uses row e mod per_token
//       ids [used, tokens] i32, a view
// Out:  out [rows, used, tokens] f32, a view; a slot whose id is outside of 0..experts is not written
//
// One thread per output element, rows fastest. Arithmetic: w in f32, exact but for the one rounding where a minimum is
// added (q4_1, q5_1, q4_K); then one multiplication and one addition (fused or not) for each of the k values, in order.
// k is free for unblocked types.

#include "common.cuh"

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

// The value of an f16. The type itself is known to a header only, its conversion to the instruction set.
__device__ __forceinline__ float f16_value(const u16 bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// An f16 at any address, in f32.
__device__ __forceinline__ float load_f16(const u8 *at)
{
    return f16_value((u16)(at[0] | at[1] << 8));
}

// Code i of 32 in 16 bytes: low nibbles are the first half, high nibbles the second.
__device__ __forceinline__ int four_bits(const u8 *codes, const u32 i)
{
    return (codes[i % 16] >> (i / 16 * 4)) & 15;
}

// Code i of 32 in 4 bytes of fifth bits and 16 bytes of nibbles.
__device__ __forceinline__ int five_bits(const u8 *codes, const u32 i)
{
    return four_bits(codes + 4, i) | ((codes[i / 8] >> (i % 8)) & 1) << 4;
}

// Element i of a row, for each type.

__device__ __forceinline__ float weight_f32(const u8 *row, const u32 i)
{
    return ((const float *)row)[i];
}

__device__ __forceinline__ float weight_f16(const u8 *row, const u32 i)
{
    return f16_value(((const u16 *)row)[i]);
}

// The upper half of an f32.
__device__ __forceinline__ float weight_bf16(const u8 *row, const u32 i)
{
    return __uint_as_float((u32)((const u16 *)row)[i] << 16);
}

// f16 scale, codes of four bits.
__device__ __forceinline__ float weight_q4_0(const u8 *row, const u32 i)
{
    const u8 *block = row + (u64)(i / 32) * 18;
    return load_f16(block) * (float)(four_bits(block + 2, i % 32) - 8);
}

// f16 scale, f16 minimum, codes of four bits.
__device__ __forceinline__ float weight_q4_1(const u8 *row, const u32 i)
{
    const u8 *block = row + (u64)(i / 32) * 20;
    return load_f16(block) * (float)four_bits(block + 4, i % 32) + load_f16(block + 2);
}

// f16 scale, codes of five bits.
__device__ __forceinline__ float weight_q5_0(const u8 *row, const u32 i)
{
    const u8 *block = row + (u64)(i / 32) * 22;
    return load_f16(block) * (float)(five_bits(block + 2, i % 32) - 16);
}

// f16 scale, f16 minimum, codes of five bits.
__device__ __forceinline__ float weight_q5_1(const u8 *row, const u32 i)
{
    const u8 *block = row + (u64)(i / 32) * 24;
    return load_f16(block) * (float)five_bits(block + 4, i % 32) + load_f16(block + 2);
}

// f16 scale, signed bytes.
__device__ __forceinline__ float weight_q8_0(const u8 *row, const u32 i)
{
    const u8 *block = row + (u64)(i / 32) * 34;
    return load_f16(block) * (float)(i8)block[2 + i % 32];
}

// f16 scale, f16 scale of minima, 12 bytes of six-bit scales and minima, 128 bytes of nibbles. Eight sub-blocks of 32,
// each with a scale and a minimum; two of them share 32 bytes, the first one has the low nibbles. Bytes 0 to 3 hold
// scales 0 to 3 and bytes 4 to 7 minima 0 to 3, with the upper two bits of number 4 to 7 above them; bytes 8 to 11 hold
// the lower four bits of those, scales in low nibbles and minima in high ones.
__device__ __forceinline__ float weight_q4_K(const u8 *row, const u32 i)
{
    const u8 *block = row + (u64)(i / 256) * 144;
    const u32 sub_block = i % 256 / 32;
    const u8 *packed = block + 4 + sub_block % 4;
    const bool late = sub_block >= 4;
    const int scale = late ? (packed[8] & 15) | (packed[0] >> 6 << 4) : packed[0] & 63;
    const int minimum = late ? (packed[8] >> 4) | (packed[4] >> 6 << 4) : packed[4] & 63;
    const int code = (block[16 + sub_block / 2 * 32 + i % 32] >> (sub_block % 2 * 4)) & 15;
    return load_f16(block) * (float)scale * (float)code - load_f16(block + 2) * (float)minimum;
}

// 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales of 16 elements each, f16 scale. Each half of
// 128 elements has 64 bytes of nibbles, low ones first, and 32 bytes with a pair for each quarter, lowest first.
__device__ __forceinline__ float weight_q6_K(const u8 *row, const u32 i)
{
    const u8 *block = row + (u64)(i / 256) * 210;
    const u32 half_block = i % 256 / 128;
    const u32 quarter = i % 128 / 32;
    const int low = (block[half_block * 64 + i % 64] >> (quarter / 2 * 4)) & 15;
    const int high = (block[128 + half_block * 32 + i % 32] >> (quarter * 2)) & 3;
    const int scale = (i8)block[192 + i % 256 / 16];
    return load_f16(block + 208) * (float)scale * (float)((low | (high << 4)) - 32);
}

// The sum over a row, in the order of k.
template <float weight(const u8 *, u32)>
__device__ float dot(const u8 *row, const float *x, const u32 k)
{
    float sum = 0.0f;
    for (u32 i = 0; i < k; ++i)
        sum += weight(row, i) * x[i];
    return sum;
}

__device__ float dot_of_type(const u32 type, const u8 *row, const float *x, const u32 k)
{
    switch (type) {
    case TYPE_F32: return dot<weight_f32>(row, x, k);
    case TYPE_F16: return dot<weight_f16>(row, x, k);
    case TYPE_BF16: return dot<weight_bf16>(row, x, k);
    case TYPE_Q4_0: return dot<weight_q4_0>(row, x, k);
    case TYPE_Q4_1: return dot<weight_q4_1>(row, x, k);
    case TYPE_Q5_0: return dot<weight_q5_0>(row, x, k);
    case TYPE_Q5_1: return dot<weight_q5_1>(row, x, k);
    case TYPE_Q8_0: return dot<weight_q8_0>(row, x, k);
    case TYPE_Q4_K: return dot<weight_q4_K>(row, x, k);
    default: return dot<weight_q6_K>(row, x, k);
    }
}

KERNEL expert(const u32 type, const u8 *weights, const View weights_view, const u32 k, const u32 rows,
              const u32 experts, const u8 *x, const View x_view, const u32 per_token, const u8 *ids,
              const View ids_view, const u32 used, const u32 slots, u8 *out, const View out_view)
{
    const u64 item = thread_number();
    if (item >= (u64)slots * rows)
        return;

    const u64 row = item % rows;
    const u64 slot = item / rows;
    const u64 token = slot / used;
    const u64 e = slot % used; // slot in token

    const u32 id = (u32)((const int *)(ids + ids_view.offset + token * ids_view.stride1))[e];
    if (id >= experts)
        return;

    const u8 *w = weights + weights_view.offset + row * weights_view.stride1 + id * weights_view.stride2;
    const u8 *activations = x + x_view.offset + e % per_token * x_view.stride1 + token * x_view.stride2;
    const u64 at = out_view.offset + e * out_view.stride1 + token * out_view.stride2;
    ((float *)(out + at))[row] = dot_of_type(type, w, (const float *)activations, k);
}
