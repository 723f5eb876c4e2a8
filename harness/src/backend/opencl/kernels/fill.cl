// Fills memory: scratch with a pattern, and the bytes of a view with zeros.
//
// fill:        one work-item per 32-bit word of the buffer.
// clear_view:  one work-item per row of a view [.., rows, planes]; the rest of the allocation is not touched.
//              Run before restore, so that what restore fails to write reads as zero and not as the old bytes.
// dirty:       each work-group fills its local memory with a pattern. A word of it goes to `sink`, so that no compiler
//              finds the rest useless; that is the pattern, whichever work-item wins.

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void fill(__global uint *words, const ulong count, const uint pattern)
{
    const ulong item = get_global_id(0);
    if (item < count)
        words[item] = pattern;
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void clear_view(__global uchar *raw, const ulong4 view, const ulong row_bytes, const uint rows, const uint planes)
{
    const ulong item = get_global_id(0);
    if (item >= (ulong)rows * planes)
        return;

    __global uchar *row = raw + view.x + (item % rows) * view.y + (item / rows) * view.z;
    for (ulong i = 0; i < row_bytes; ++i)
        row[i] = 0;
}

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void dirty(__global uint *sink, const uint count, const uint pattern, __local uint *words)
{
    for (uint i = get_local_id(0); i < count; i += GROUP)
        words[i] = pattern;
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint other = (get_local_id(0) * 977u + 13u) % count;
    if (words[other] != pattern || get_global_id(0) == 0)
        sink[0] = words[other];
}
