// Sorts the columns of each row and returns their indices: a bitonic network over columns padded to a power of two.
//
// In:   x [cols, r1, r2, r3] f32, a view
// Out:  out [cols, r1, r2, r3] i32, a view
//
// An entry is a key above the index of its column, in 64 bits. Keys are the bits of the value mapped so that unsigned
// order is numeric order, inverted for a descending sort: NaN and infinities are keys like any other, -0 is next to +0.
// Entries added by the padding have the largest key and an index >= cols, so that they come after every column in
// either direction, those with the largest key too. Equal keys are ordered by index: there is one right answer, and any
// network finds it.
//
// Rows whose entries fit into shared memory: argsort_rows, in one launch; several short rows share a block.
// Longer rows, some at a time: load_entries, then sort_blocks for the part of the network that stays inside a block
// and exchange for each stage that doesn't, then store_indices. `rows` and `first_row` bound and place the rows.

#include "common.cuh"
#include "rows.cuh"

// Entries of a block in shared memory, as many as the launch asks for.
extern __shared__ u64 shared_entries[];

// The entry of a column; padding where the column is none.
__device__ __forceinline__ u64 entry_of(const u32 *row, const u32 col, const u32 cols, const u32 descending)
{
    u32 key = 0xffffffffu;
    if (col < cols) {
        const u32 bits = row[col];
        const u32 ascending_key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
        key = descending ? ~ascending_key : ascending_key;
    }
    return (u64)key << 32 | col;
}

// The first entry of a pair at the given distance; the second is `stride` further.
__device__ __forceinline__ u64 pair_start(const u64 pair, const u32 stride)
{
    return 2 * pair - (pair & (stride - 1));
}

// Puts a pair into order, up or down.
__device__ __forceinline__ void order(u64 *a, u64 *b, const bool up)
{
    const u64 first = *a, second = *b;
    if ((second < first) == up) {
        *a = second;
        *b = first;
    }
}

// The stages of merges from size `from` to size `to` that stay inside `entries` entries in shared memory.
// `first` is the position of the first entry, counted over rows of `padded` entries.
// All threads of the block must come here.
__device__ void network(const u32 entries, const u64 first, const u32 padded, const u32 from, const u32 to)
{
    for (u32 size = from; size <= to; size *= 2) {
        for (u32 stride = min(size, entries) / 2; stride > 0; stride /= 2) {
            for (u32 pair = threadIdx.x; pair < entries / 2; pair += GROUP) {
                const u32 a = pair_start(pair, stride);
                const bool up = (((first + a) & (padded - 1)) & size) == 0;
                order(&shared_entries[a], &shared_entries[a + stride], up);
            }
            __syncthreads();
        }
    }
}

// Whole rows in shared memory: a block has `entries` entries, which is one row or several.
KERNEL argsort_rows(const u8 *x, const View x_view, u8 *out, const View out_view, const Dims dims, const u32 cols,
                    const u32 padded, const u64 rows, const u32 descending, const u32 entries)
{
    const u64 first_row = blockIdx.x * (u64)(entries / padded);
    for (u32 i = threadIdx.x; i < entries; i += GROUP) {
        const u64 row = first_row + i / padded;
        const u32 *values = (const u32 *)(x + row_offset(x_view, dims, row < rows ? row : 0));
        shared_entries[i] = entry_of(values, i % padded, cols, descending);
    }
    __syncthreads();

    network(entries, 0, padded, 2, padded);

    for (u32 i = threadIdx.x; i < entries; i += GROUP) {
        const u64 row = first_row + i / padded;
        const u32 col = i % padded;
        if (row < rows && col < cols)
            ((u32 *)(out + row_offset(out_view, dims, row)))[col] = (u32)shared_entries[i];
    }
}

// Fills entries [padded, rows] from the rows that start at first_row.
KERNEL load_entries(const u8 *x, const View x_view, const Dims dims, const u32 cols, const u32 padded,
                    const u64 first_row, const u64 rows, const u32 descending, u64 *entries)
{
    const u64 item = thread_number();
    if (item >= rows * padded)
        return;
    const u32 *values = (const u32 *)(x + row_offset(x_view, dims, first_row + item / padded));
    entries[item] = entry_of(values, item % padded, cols, descending);
}

// Merges from size `from` to size `to`, inside blocks of `count` entries; a row is a whole number of blocks.
KERNEL sort_blocks(u64 *entries, const u32 padded, const u32 from, const u32 to, const u32 count)
{
    const u64 first = blockIdx.x * (u64)count;
    for (u32 i = threadIdx.x; i < count; i += GROUP)
        shared_entries[i] = entries[first + i];
    __syncthreads();

    network(count, first, padded, from, to);

    for (u32 i = threadIdx.x; i < count; i += GROUP)
        entries[first + i] = shared_entries[i];
}

// One stage of the merge of size `size`: each thread has one pair of the rows [padded, rows].
KERNEL exchange(u64 *entries, const u32 padded, const u64 rows, const u32 size, const u32 stride)
{
    const u64 pair = thread_number();
    if (pair >= rows * (padded / 2))
        return;
    const u64 a = pair_start(pair, stride);
    const bool up = ((a & (padded - 1)) & size) == 0;
    order(&entries[a], &entries[a + stride], up);
}

// Writes the sorted indices of the rows that start at first_row.
KERNEL store_indices(const u64 *entries, const u32 cols, const u32 padded, const u64 first_row, const u64 rows,
                     u8 *out, const View out_view, const Dims dims)
{
    const u64 item = thread_number();
    const u64 row = item / cols;
    const u32 col = item % cols;
    if (row < rows)
        ((u32 *)(out + row_offset(out_view, dims, first_row + row)))[col] = (u32)entries[row * padded + col];
}
