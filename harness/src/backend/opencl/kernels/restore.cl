// The exact inverse of convert: writes MXFP4 blocks back where the view has them.
//
// In:   scale and code as convert leaves them (see there for the layout).
// Out:  the bytes of weights [k, rows, experts], a view of `raw`; bytes outside of the view are not touched.
//
// One work-item per block, rows fastest, 64-bit products. Every pattern of bytes comes back bit by bit.

#define BLOCK_BYTES 17

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void restore(__global uchar *raw, const ulong4 view, const uint blocks, const uint rows, const uint experts,
             __global const uchar *scale, __global const uint *code)
{
    const ulong item = get_global_id(0);
    if (item >= (ulong)blocks * rows * experts)
        return;

    const ulong row = item % rows;
    const ulong plane = item / rows; // expert * blocks + block
    const ulong block = plane % blocks;
    const ulong expert = plane / blocks;

    __global uchar *to = raw + view.x + row * view.y + expert * view.z + block * BLOCK_BYTES;
    to[0] = scale[item];
    for (uint half_block = 0; half_block < 2; ++half_block) {
        // Values 0..7 and 16..23 share bytes 0..7; values 8..15 and 24..31 share bytes 8..15.
        const uint low = code[(plane * 4 + half_block) * rows + row];
        const uint high = code[(plane * 4 + half_block + 2) * rows + row];
        for (uint i = 0; i < 8; ++i)
            to[1 + 8 * half_block + i] = (uchar)(((low >> (4 * i)) & 15u) | (((high >> (4 * i)) & 15u) << 4));
    }
}
