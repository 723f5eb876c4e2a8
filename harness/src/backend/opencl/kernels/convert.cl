// Turns MXFP4 expert weights into the layout that gemm and gemv read.
//
// In:   weights [k, rows, experts], a view of `raw`. A block of 32 values is 17 bytes: the e8m0 scale, then 16
//       bytes of codes, byte i holding value i in its low half and value i + 16 in its high half.
// Out:  scale[(expert * blocks + block) * rows + row]
//       code[((expert * blocks + block) * 4 + j) * rows + row]: value 8j + i in bits 4i of word j.
//       Neighbouring rows are neighbours in memory, so work-items that take neighbouring rows read together.
//
// One work-item per block, rows fastest. The product experts * blocks * rows may exceed 32 bits.
// A view is (byte offset, then byte strides of dimensions 1, 2 and 3); blocks lie at any byte address.

#define BLOCK_BYTES 17

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void convert(__global const uchar *raw, const ulong4 view, const uint blocks, const uint rows, const uint experts,
             __global uchar *scale, __global uint *code)
{
    const ulong item = get_global_id(0);
    if (item >= (ulong)blocks * rows * experts)
        return;

    const ulong row = item % rows;
    const ulong plane = item / rows; // expert * blocks + block
    const ulong block = plane % blocks;
    const ulong expert = plane / blocks;

    __global const uchar *from = raw + view.x + row * view.y + expert * view.z + block * BLOCK_BYTES;
    scale[item] = from[0];
    for (uint j = 0; j < 4; ++j) {
        __global const uchar *bytes = from + 1 + 8 * (j % 2);
        uint word = 0;
        for (uint i = 0; i < 8; ++i) {
            const uint value = j < 2 ? bytes[i] & 15u : bytes[i] >> 4;
            word |= value << (4 * i);
        }
        code[(plane * 4 + j) * rows + row] = word;
    }
}
