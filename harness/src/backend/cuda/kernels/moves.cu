// Moves many small pieces between tensors and staging memory, in one launch: one block for each piece.
//
// A piece is a rectangle of at most 64 KiB: `count` rows of `size` bytes. The table has five 64-bit words for each:
// the address in device memory, the offset in the staging memory, the distance between rows in either, and
// size | count << 32. Bytes move in the widest unit that all of these are multiples of.

#include "common.cuh"

struct Piece {
    u64 here, there, here_stride, there_stride, shape;
};

template <typename Unit>
__device__ __forceinline__ void copy_rows(const u8 *from, u64 from_stride, u8 *to, u64 to_stride, u32 size, u32 count)
{
    const u32 units = size / (u32)sizeof(Unit);
    for (u32 i = threadIdx.x; i < units * count; i += GROUP) {
        const u32 row = i / units, unit = i % units;
        ((Unit *)(to + row * to_stride))[unit] = ((const Unit *)(from + row * from_stride))[unit];
    }
}

__device__ __forceinline__ void copy_piece(const u8 *from, u64 from_stride, u8 *to, u64 to_stride, u64 shape)
{
    const u32 size = (u32)shape, count = (u32)(shape >> 32);
    const u64 all = (u64)from | (u64)to | from_stride | to_stride | size;
    if (all % 16 == 0)
        copy_rows<uint4>(from, from_stride, to, to_stride, size, count);
    else if (all % 4 == 0)
        copy_rows<u32>(from, from_stride, to, to_stride, size, count);
    else if (all % 2 == 0)
        copy_rows<u16>(from, from_stride, to, to_stride, size, count);
    else
        copy_rows<u8>(from, from_stride, to, to_stride, size, count);
}

// From tensors into staging memory.
KERNEL gather(const Piece *pieces, u8 *staging)
{
    const Piece p = pieces[blockIdx.x];
    copy_piece((const u8 *)p.here, p.here_stride, staging + p.there, p.there_stride, p.shape);
}

// From staging memory into tensors.
KERNEL spread(const Piece *pieces, const u8 *staging)
{
    const Piece p = pieces[blockIdx.x];
    copy_piece(staging + p.there, p.there_stride, (u8 *)p.here, p.here_stride, p.shape);
}
