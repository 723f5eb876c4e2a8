// Gathers activation rows in the order of sorted slots, so that gemm reads a tile's rows one after the other.
//
// In:   x [k, per_token, tokens] f32, a view: slot e of a token uses row e mod per_token
//       sorted, tile_offset: see route.cl
// Out:  gathered[place][k], zeros where the place holds no slot; tiles not in use are left alone
//
// One work-item per value; a row may start at any multiple of 4 bytes and have any length. Rows are told by
// remainder, not by division: the two agree only where per_token is 1 or the number of slots per token.

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void reorder(__global const uchar *x, const ulong4 view, const uint k, const uint per_token, const uint used,
             const uint experts, __global const uint *tile_offset, __global const uint *sorted,
             __global float *gathered)
{
    const ulong item = get_global_id(0);
    const ulong place = item / k;
    if (place >= (ulong)tile_offset[experts] * TILE_SLOTS)
        return;

    const uint slot = sorted[place];
    float value = 0.0f;
    if (slot != NO_SLOT) {
        const ulong token = slot / used;
        const ulong row = slot % used % per_token;
        value = ((__global const float *)(x + view.x + row * view.y + token * view.z))[item % k];
    }
    gathered[item] = value;
}
