// Rows of a view of keys, counted over all dimensions above the columns.

// Sizes of dimensions 1 and 2.
struct Dims {
    u32 r1, r2;
};

// Byte offset of a row.
__device__ __forceinline__ u64 row_offset(const View view, const Dims dims, const u64 row)
{
    const u64 i1 = row % dims.r1;
    const u64 i2 = row / dims.r1 % dims.r2;
    const u64 i3 = row / dims.r1 / dims.r2;
    return view.offset + i1 * view.stride1 + i2 * view.stride2 + i3 * view.stride3;
}
