// Moves many small pieces between one tensor and staging memory, in one launch: one work-group for each piece.
//
// A piece is a rectangle of at most 64 KiB: `count` rows of `size` bytes. The table has five 64-bit words for each:
// its place in the tensor's allocation, its place in the staging memory, the distance between rows in either, and
// size | count << 32. Bytes move in the widest unit that all of these are multiples of.

#define COPY_ROWS(unit_type)                                                                                           \
    for (uint i = get_local_id(0); i < size / (uint)sizeof(unit_type) * count; i += GROUP) {                           \
        const uint units = size / (uint)sizeof(unit_type), row = i / units, unit = i % units;                          \
        ((__global unit_type *)(to + row * to_stride))[unit] =                                                         \
            ((__global const unit_type *)(from + row * from_stride))[unit];                                            \
    }

void copy_piece(__global const uchar *from, const ulong from_stride, __global uchar *to, const ulong to_stride,
                const ulong from_at, const ulong to_at, const ulong shape)
{
    const uint size = (uint)shape, count = (uint)(shape >> 32);
    const ulong all = from_at | to_at | from_stride | to_stride | size;
    from += from_at;
    to += to_at;
    if (all % 16 == 0)
        COPY_ROWS(uint4)
    else if (all % 4 == 0)
        COPY_ROWS(uint)
    else if (all % 2 == 0)
        COPY_ROWS(ushort)
    else
        COPY_ROWS(uchar)
}

// From the tensor into staging memory.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void gather(__global const ulong *pieces, const ulong first, __global const uchar *tensor, __global uchar *staging)
{
    __global const ulong *p = pieces + 5 * (first + get_group_id(0));
    copy_piece(tensor, p[2], staging, p[3], p[0], p[1], p[4]);
}

// From staging memory into the tensor.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void spread(__global const ulong *pieces, const ulong first, __global uchar *tensor, __global const uchar *staging)
{
    __global const ulong *p = pieces + 5 * (first + get_group_id(0));
    copy_piece(staging, p[3], tensor, p[2], p[1], p[0], p[4]);
}
