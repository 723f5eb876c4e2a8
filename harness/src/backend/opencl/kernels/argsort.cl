// Sorts the columns of each row and returns their indices: a bitonic network over columns padded to a power of two.
//
// In:   x [cols, r1, r2, r3] f32, a view
// Out:  out [cols, r1, r2, r3] i32, a view
//
// An entry is a key and the index of its column. Keys are the bits of the value mapped so that unsigned order is
// numeric order, inverted for a descending sort: NaN and infinities are keys like any other, -0 is next to +0.
// Entries added by the padding have an index >= cols; they are told by that index, never by a key, and sort last in
// either direction. Equal keys are ordered by index, so there is one right answer and any network finds it.
//
// Rows whose entries fit into local memory: argsort_rows, in one launch; several short rows share a work-group.
// Longer rows, some at a time: load_keys, then sort_blocks for the part of the network that stays inside a block
// and exchange for each stage that doesn't, then store_indices. `rows` and `first_row` bound and place the rows.

// Byte offset of a row of a view with dimensions dims.x and dims.y above the columns.
ulong row_offset(const ulong4 view, const uint2 dims, const ulong row)
{
    const ulong i1 = row % dims.x;
    const ulong i2 = row / dims.x % dims.y;
    const ulong i3 = row / dims.x / dims.y;
    return view.x + i1 * view.y + i2 * view.z + i3 * view.w;
}

// Unsigned order of keys is the wanted order of values.
uint sort_key(const uint bits, const uint descending)
{
    const uint ascending_key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return descending ? ~ascending_key : ascending_key;
}

// True if entry a belongs before entry b.
bool before(const uint key_a, const uint index_a, const uint key_b, const uint index_b, const uint cols)
{
    const bool padding_a = index_a >= cols;
    const bool padding_b = index_b >= cols;
    if (padding_a != padding_b)
        return padding_b;
    return key_a != key_b ? key_a < key_b : index_a < index_b;
}

// The first entry of a pair at the given distance; the second is `stride` further.
ulong pair_start(const ulong pair, const uint stride)
{
    return 2 * pair - (pair & (stride - 1));
}

// The stages of merges from size `from` to size `to` that stay inside `entries` entries in local memory.
// `first` is the position of the first entry, counted over rows of `padded` entries.
// All work-items of the group must come here.
void network(__local uint *key, __local uint *index, const uint entries, const ulong first, const uint padded,
             const uint from, const uint to, const uint cols)
{
    for (uint size = from; size <= to; size *= 2) {
        for (uint stride = min(size, entries) / 2; stride > 0; stride /= 2) {
            for (uint pair = get_local_id(0); pair < entries / 2; pair += GROUP) {
                const uint a = pair_start(pair, stride);
                const uint b = a + stride;
                const bool up = (((first + a) & (padded - 1)) & size) == 0;
                if (before(key[b], index[b], key[a], index[a], cols) == up) {
                    const uint k = key[a], i = index[a];
                    key[a] = key[b], index[a] = index[b];
                    key[b] = k, index[b] = i;
                }
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    }
}

// Whole rows in local memory: a work-group has `entries` entries, which is one row or several.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void argsort_rows(__global const uchar *x, const ulong4 x_view, __global uchar *out, const ulong4 out_view,
                  const uint2 dims, const uint cols, const uint padded, const ulong rows, const uint descending,
                  const uint entries, __local uint *key, __local uint *index)
{
    const ulong first_row = get_group_id(0) * (ulong)(entries / padded);
    for (uint i = get_local_id(0); i < entries; i += GROUP) {
        const ulong row = first_row + i / padded;
        const uint col = i % padded;
        const bool real = row < rows && col < cols;
        const uint bits = real ? ((__global const uint *)(x + row_offset(x_view, dims, row)))[col] : 0;
        key[i] = sort_key(bits, descending);
        index[i] = col;
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    network(key, index, entries, 0, padded, 2, padded, cols);

    for (uint i = get_local_id(0); i < entries; i += GROUP) {
        const ulong row = first_row + i / padded;
        const uint col = i % padded;
        if (row < rows && col < cols)
            ((__global uint *)(out + row_offset(out_view, dims, row)))[col] = index[i];
    }
}

// Fills keys and indices [padded, rows] from the rows that start at first_row.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void load_keys(__global const uchar *x, const ulong4 x_view, const uint2 dims, const uint cols, const uint padded,
               const ulong first_row, const ulong rows, const uint descending, __global uint *keys,
               __global uint *indices)
{
    const ulong item = get_global_id(0);
    if (item >= rows * padded)
        return;
    const ulong row = first_row + item / padded;
    const uint col = item % padded;
    const uint bits = col < cols ? ((__global const uint *)(x + row_offset(x_view, dims, row)))[col] : 0;
    keys[item] = sort_key(bits, descending);
    indices[item] = col;
}

// Merges from size `from` to size `to`, inside blocks of `entries` entries; a row is a whole number of blocks.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void sort_blocks(__global uint *keys, __global uint *indices, const uint cols, const uint padded, const uint from,
                 const uint to, const uint entries, __local uint *key, __local uint *index)
{
    const ulong first = get_group_id(0) * (ulong)entries;
    for (uint i = get_local_id(0); i < entries; i += GROUP) {
        key[i] = keys[first + i];
        index[i] = indices[first + i];
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    network(key, index, entries, first, padded, from, to, cols);

    for (uint i = get_local_id(0); i < entries; i += GROUP) {
        keys[first + i] = key[i];
        indices[first + i] = index[i];
    }
}

// One stage of the merge of size `size`: each work-item has one pair of the rows [padded, rows].
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void exchange(__global uint *keys, __global uint *indices, const uint cols, const uint padded, const ulong rows,
              const uint size, const uint stride)
{
    const ulong pair = get_global_id(0);
    if (pair >= rows * (padded / 2))
        return;
    const ulong a = pair_start(pair, stride);
    const ulong b = a + stride;
    const bool up = ((a & (padded - 1)) & size) == 0;
    const uint key_a = keys[a], index_a = indices[a];
    const uint key_b = keys[b], index_b = indices[b];
    if (before(key_b, index_b, key_a, index_a, cols) == up) {
        keys[a] = key_b, indices[a] = index_b;
        keys[b] = key_a, indices[b] = index_a;
    }
}

// Writes the sorted indices of the rows that start at first_row.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void store_indices(__global const uint *indices, const uint cols, const uint padded, const ulong first_row,
                   const ulong rows, __global uchar *out, const ulong4 out_view, const uint2 dims)
{
    const ulong item = get_global_id(0);
    const ulong row = item / cols;
    const uint col = item % cols;
    if (row < rows)
        ((__global uint *)(out + row_offset(out_view, dims, first_row + row)))[col] = indices[row * padded + col];
}
