// Finds the k largest columns of each row and returns their indices, in rising order: a radix select.
//
// In:   x [cols, r1, r2, r3] f32, a view
// Out:  out [k, r1, r2, r3] i32, a view
//
// A work-group has a row. Four passes each count the columns by the next byte of their rank, among those that agree
// with the k-th in the bytes before, and so find the k-th rank byte by byte. Then every column of a lower rank is
// taken, and of those with the k-th rank the first ones, until k are there. Nothing is kept but the 256 counts, so
// neither columns nor k nor ties have a limit.
//
// For the last step each work-item has a contiguous share of the columns: its first place in the output is a sum over
// the work-items before it, and no order of execution shows in the result.

// Byte offset of a row of a view with dimensions dims.x and dims.y above the columns.
ulong row_offset(const ulong4 view, const uint2 dims, const ulong row)
{
    const ulong i1 = row % dims.x;
    const ulong i2 = row / dims.x % dims.y;
    const ulong i3 = row / dims.x / dims.y;
    return view.x + i1 * view.y + i2 * view.z + i3 * view.w;
}

// The larger the value, the lower its rank: NaN and infinities have ranks like any other, that of -0 is next to that of +0.
uint rank_of(const uint bits)
{
    return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void top_k(__global const uchar *x, const ulong4 x_view, __global uchar *out, const ulong4 out_view, const uint2 dims,
           const uint cols, const uint k)
{
    __local uint count[256];
    __local uint found[2];
    __local uint lower[GROUP], equal[GROUP];
    const uint lane = get_local_id(0);
    __global const uint *values = (__global const uint *)(x + row_offset(x_view, dims, get_group_id(0)));
    __global uint *indices = (__global uint *)(out + row_offset(out_view, dims, get_group_id(0)));

    // The k-th rank, as far as it is known, and how many columns are still wanted of those that agree with it.
    uint kth = 0, wanted = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (uint i = lane; i < 256; i += GROUP)
            count[i] = 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint col = lane; col < cols; col += GROUP) {
            const uint rank = rank_of(values[col]);
            if (shift == 24 || rank >> (shift + 8) == kth >> (shift + 8))
                atomic_inc(&count[rank >> shift & 255]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane == 0) {
            uint byte = 0;
            while (byte < 255 && count[byte] < wanted)
                wanted -= count[byte++];
            found[0] = kth | byte << shift;
            found[1] = wanted;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        kth = found[0], wanted = found[1];
    }

    const uint share = (cols - 1) / GROUP + 1;
    const uint first = min(lane * share, cols), end = min(first + share, cols);
    uint lower_here = 0, equal_here = 0;
    for (uint col = first; col < end; ++col) {
        const uint rank = rank_of(values[col]);
        lower_here += rank < kth;
        equal_here += rank == kth;
    }
    lower[lane] = lower_here, equal[lane] = equal_here;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint place = 0, ties = 0;
    for (uint i = 0; i < lane; ++i)
        place += lower[i], ties += equal[i];
    place += min(ties, wanted);
    for (uint col = first; col < end; ++col) {
        const uint rank = rank_of(values[col]);
        if (rank < kth || (rank == kth && ties++ < wanted))
            indices[place++] = col;
    }
}
