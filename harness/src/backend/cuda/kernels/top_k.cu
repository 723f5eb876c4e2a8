// Finds the k largest columns of each row and returns their indices, in rising order: a radix select.
//
// In:   x [cols, r1, r2, r3] f32, a view
// Out:  out [k, r1, r2, r3] i32, a view
//
// A block has a row. Four passes each count the columns by the next byte of their rank, among those that agree
// with the k-th in the bytes before, and so find the k-th rank byte by byte. Then every column of a lower rank is
// taken, and of those with the k-th rank the first ones, until k are there. Nothing is kept but the 256 counts, so
// neither columns nor k nor ties have a limit.
//
// For the last step each thread has a contiguous share of the columns: its first place in the output is a sum over
// the threads before it, and no order of execution shows in the result.

#include "common.cuh"
#include "rows.cuh"

// The larger the value, the lower its rank: NaN and infinities have ranks like any other, that of -0 is next to that of
// +0.
__device__ __forceinline__ u32 rank_of(const u32 bits)
{
    return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

KERNEL top_k(const u8 *x, const View x_view, u8 *out, const View out_view, const Dims dims, const u32 cols,
             const u32 k)
{
    __shared__ u32 count[256];
    __shared__ u32 found[2];
    __shared__ u32 lower[GROUP], equal[GROUP];
    const u32 lane = threadIdx.x;
    const u32 *values = (const u32 *)(x + row_offset(x_view, dims, blockIdx.x));
    u32 *indices = (u32 *)(out + row_offset(out_view, dims, blockIdx.x));

    // The k-th rank, as far as it is known, and how many columns are still wanted of those that agree with it.
    u32 kth = 0, wanted = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (u32 i = lane; i < 256; i += GROUP)
            count[i] = 0;
        __syncthreads();
        for (u32 col = lane; col < cols; col += GROUP) {
            const u32 rank = rank_of(values[col]);
            if (shift == 24 || rank >> (shift + 8) == kth >> (shift + 8))
                atomicAdd(&count[rank >> shift & 255], 1);
        }
        __syncthreads();
        if (lane == 0) {
            u32 byte = 0;
            while (byte < 255 && count[byte] < wanted)
                wanted -= count[byte++];
            found[0] = kth | byte << shift;
            found[1] = wanted;
        }
        __syncthreads();
        kth = found[0];
        wanted = found[1];
    }

    const u32 share = (cols - 1) / GROUP + 1;
    const u32 first = min(lane * share, cols), end = min(first + share, cols);
    u32 lower_here = 0, equal_here = 0;
    for (u32 col = first; col < end; ++col) {
        const u32 rank = rank_of(values[col]);
        lower_here += rank < kth;
        equal_here += rank == kth;
    }
    lower[lane] = lower_here;
    equal[lane] = equal_here;
    __syncthreads();
    u32 place = 0, ties = 0;
    for (u32 i = 0; i < lane; ++i) {
        place += lower[i];
        ties += equal[i];
    }
    place += min(ties, wanted);
    for (u32 col = first; col < end; ++col) {
        const u32 rank = rank_of(values[col]);
        if (rank < kth || (rank == kth && ties++ < wanted))
            indices[place++] = col;
    }
}
