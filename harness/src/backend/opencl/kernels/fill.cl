// Fills memory: scratch with a pattern, and the bytes of a view with zeros.
//
// fill:        one work-item per 32-bit word of the buffer.
// clear_view:  one work-item per row of a view [.., rows, planes]; the rest of the allocation is not touched.
//              Run before restore, so that what restore fails to write reads as zero and not as the old bytes.

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
