// Turns MXFP4 expert weights into the layout that gemm and gemv read, and back.
//
// In:   weights [k, rows, experts], a view of `raw`. A block of 32 values is 17 bytes: the e8m0 scale, then 16
//       bytes of codes, byte i holding value i in its low half and value i + 16 in its high half.
// Out:  scale[(expert * blocks + block) * rows + row]
//       code[((expert * blocks + block) * 4 + j) * rows + row]: value 8j + i in bits 4i of word j.
//       Neighbouring rows are neighbours in memory, so threads that take neighbouring rows read together.
//
// convert, restore:  one thread per block of weights, rows fastest. restore is the exact inverse: every pattern of bytes
//                    comes back bit by bit, and bytes outside of the view are not touched.
// clear_view:        one thread per row. Run before restore, so that what restore fails to write reads as zero and not
//                    as the old bytes.
// Guarded: experts * blocks * rows beyond 32 bits; blocks at any byte address.

#include "common.cuh"

#define BLOCK_BYTES 17

// One block of weights, in both layouts.
struct Place {
    u64 raw;   // byte offset of the block
    u64 scale; // index of its scale
    u64 code;  // index of its first word; the others are `rows` apart
};

__device__ __forceinline__ Place place_of(const u64 item, const View view, const u32 blocks, const u32 rows)
{
    const u64 row = item % rows;
    const u64 plane = item / rows; // expert * blocks + block
    const u64 block = plane % blocks;
    const u64 expert = plane / blocks;
    return {view.offset + row * view.stride1 + expert * view.stride2 + block * BLOCK_BYTES, item,
            plane * 4 * rows + row};
}

KERNEL convert(const u8 *raw, const View view, const u32 blocks, const u32 rows, const u32 experts, u8 *scale,
               u32 *code)
{
    const u64 item = thread_number();
    if (item >= (u64)blocks * rows * experts)
        return;

    const Place place = place_of(item, view, blocks, rows);
    const u8 *from = raw + place.raw;
    scale[place.scale] = from[0];
    for (u32 j = 0; j < 4; ++j) {
        const u8 *bytes = from + 1 + 8 * (j % 2);
        u32 word = 0;
        for (u32 i = 0; i < 8; ++i) {
            const u32 value = j < 2 ? bytes[i] & 15u : bytes[i] >> 4;
            word |= value << (4 * i);
        }
        code[place.code + (u64)j * rows] = word;
    }
}

KERNEL restore(u8 *raw, const View view, const u32 blocks, const u32 rows, const u32 experts, const u8 *scale,
               const u32 *code)
{
    const u64 item = thread_number();
    if (item >= (u64)blocks * rows * experts)
        return;

    const Place place = place_of(item, view, blocks, rows);
    u8 *to = raw + place.raw;
    to[0] = scale[place.scale];
    for (u32 half = 0; half < 2; ++half) {
        // Values 0..7 and 16..23 share bytes 0..7; values 8..15 and 24..31 share bytes 8..15.
        const u32 low = code[place.code + (u64)half * rows];
        const u32 high = code[place.code + (u64)(half + 2) * rows];
        for (u32 i = 0; i < 8; ++i)
            to[1 + 8 * half + i] = (u8)((low >> (4 * i) & 15u) | (high >> (4 * i) & 15u) << 4);
    }
}

KERNEL clear_view(u8 *raw, const View view, const u64 row_bytes, const u32 rows, const u32 planes)
{
    const u64 item = thread_number();
    if (item >= (u64)rows * planes)
        return;

    u8 *row = raw + view.offset + item % rows * view.stride1 + item / rows * view.stride2;
    for (u64 i = 0; i < row_bytes; ++i)
        row[i] = 0;
}
