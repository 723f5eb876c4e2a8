// The same as reorder and gemm, on tensor cores: many tokens, MXFP4 experts, chips from Ampere on.
//
// Codes are bf16 numbers as they are. An activation is the sum of three bf16 numbers, 8 bits of its 24 in each, so that
// nothing is rounded before it is multiplied, and products are exact. Activation rows are scaled by a power of two, so
// that their largest value is near 1 and the lowest parts are no subnormals: what is lost of a value is less than
// 2^-133 of the largest in its row.
//
// split:        In:   x, sorted, tile_offset: see reorder.cu
//               Out:  parts[place][block][part][t][i]: two bf16, of values 8t + i (low half) and 8t + i + 4 of a block of
//                     32; unscale[place]: the power of two to be multiplied with
//               One block per place.
// gemm_tensor:  In:   scale, code: weights [k, rows, experts] as convert leaves them; k is a multiple of 32
//                     parts and unscale; tile_offset, tile_expert, sorted: see route.cu
//               Out:  out [rows, used, tokens] f32, a view; slots that no tile holds are not written
//               A block computes TENSOR_ROWS rows of one expert for the TILE_SLOTS slots of one tile, each warp 32 rows.
//               Activations are copied to shared memory some blocks of 32 ahead, codes are read one ahead.
//
// Arithmetic: the sum over a block of 32 values is made by six multiplications of matrices, the lowest parts first: f32
// sums whose addends the hardware aligns and truncates. It is scaled back, which is exact but near zero, and the blocks
// are added in order, each with its scale, by f32 rounded to nearest.
// Guarded: rows beyond `rows`, which compute the last row again and never write; places without a slot; blocks beyond
// the tiles in use; infinite activations, which have no lower parts; experts * k * rows beyond 32 bits.

#include "common.cuh"
#include "mxfp4.cuh"

#define PARTS 3
// Words of 16 bytes that hold a slot's activations of a block.
#define QUADS (PARTS * 4)
// Those that a thread copies.
#define COPIES (TILE_SLOTS * QUADS / GROUP)
// Blocks of activations in shared memory.
#define STAGES 4

#if __CUDA_ARCH__ >= 800

// Two f32 rounded to bf16; what remains of them is left behind, nothing of an infinity or NaN.
__device__ __forceinline__ u32 take_bf16(float *low, float *high)
{
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(*high), "f"(*low));
    const float low_rest = *low - __uint_as_float(pair << 16);
    const float high_rest = *high - __uint_as_float(pair & 0xffff0000u);
    *low = low_rest == low_rest ? low_rest : 0.0f;
    *high = high_rest == high_rest ? high_rest : 0.0f;
    return pair;
}

// sum[16][8] = before + a[16][16] * b[16][8]. With g = lane / 4 and t = lane % 4 a lane holds of `sum` and `before` rows g
// (first two) and g + 8 in columns 2t and 2t + 1, of `a` rows g (a0, a2) and g + 8 (a1, a3), and of `b` column g; a0,
// a1, b0 are columns (or rows of b) 2t and 2t + 1, the others those 8 further.
__device__ __forceinline__ void multiply(float sum[4], const float before[4], const u32 a0, const u32 a1,
                                         const u32 a2, const u32 a3, const u32 b0, const u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(before[0]), "f"(before[1]), "f"(before[2]),
          "f"(before[3]));
}

// Starts a copy of 16 bytes to shared memory. Copies since the last `close` are a batch; `wait` ends when no more than
// STAGES - 2 of this thread's batches are under way.
__device__ __forceinline__ void copy(uint4 *to, const uint4 *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from));
}

__device__ __forceinline__ void close()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
}

#endif

KERNEL split(const u8 *x, const View view, const u32 k, const u32 per_token, const u32 used, const u32 experts,
             const u32 *tile_offset, const u32 *sorted, u32 *parts, float *unscale)
{
#if __CUDA_ARCH__ >= 800
    __shared__ u32 largest;
    const u64 place = blockIdx.x;
    if (place >= (u64)tile_offset[experts] * TILE_SLOTS)
        return;

    const u32 slot = sorted[place];
    const u32 live = slot != NO_SLOT;
    const u64 token = live ? slot / used : 0;
    const u64 row = live ? slot % used % per_token : 0;
    const float *from = (const float *)(x + view.offset + row * view.stride1 + token * view.stride2);

    if (threadIdx.x == 0)
        largest = 0;
    __syncthreads();
    u32 largest_here = 0;
    for (u32 i = threadIdx.x; live && i < k; i += GROUP) {
        const u32 bits = __float_as_uint(from[i]) & 0x7fffffffu;
        if (bits < 0x7f800000u)
            largest_here = max(largest_here, bits);
    }
    atomicMax(&largest, largest_here);
    __syncthreads();

    // The exponent of the largest, where both its power of two and the inverse are normal numbers.
    const u32 exponent = min(max(largest >> 23, 1u), 253u);
    const float factor = __uint_as_float((254 - exponent) << 23);
    if (threadIdx.x == 0)
        unscale[place] = __uint_as_float(exponent << 23);

    u32 *to = parts + place * (k / 32) * QUADS * 4;
    for (u32 pair = threadIdx.x; pair < k / 2; pair += GROUP) {
        const u32 block = pair / 16, within = pair % 16;
        const u32 value = 32 * block + within / 4 * 8 + within % 4;
        float low = live ? from[value] * factor : 0.0f;
        float high = live ? from[value + 4] * factor : 0.0f;
        for (u32 part = 0; part < PARTS; ++part)
            to[(u64)(block * PARTS + part) * 16 + within] = take_bf16(&low, &high);
    }
#endif
}

// Registers are held to what lets four blocks share a multiprocessor.
extern "C" __global__ void __launch_bounds__(GROUP, 4)
gemm_tensor(const u8 *scale, const u32 *code, const u32 k, const u32 rows, const u32 experts, const u32 used,
            const u32 *tile_offset, const u32 *tile_expert, const u32 *sorted, const uint4 *parts,
            const float *unscale, u8 *out, const View out_view)
{
#if __CUDA_ARCH__ >= 800
    const u32 row_tiles = (rows + TENSOR_ROWS - 1) / TENSOR_ROWS;
    const u64 tile = blockIdx.x / row_tiles;
    if (tile >= tile_offset[experts])
        return;

    const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const u32 first_row = blockIdx.x % row_tiles * TENSOR_ROWS + threadIdx.x / 32 * 32;
    const u64 expert = tile_expert[tile];
    const u64 first_place = tile * TILE_SLOTS;
    const u32 blocks = k / 32;

    // This lane's rows are g of each eight of the warp's 32.
    u32 row[4];
    for (u32 r = 0; r < 4; ++r)
        row[r] = min(first_row + 8 * r + g, rows - 1);
    // What scales a slot's sums back. In shared memory, since registers decide how many blocks a multiprocessor holds.
    __shared__ float2 unscales[TILE_SLOTS / 2];
    if (threadIdx.x < TILE_SLOTS)
        ((float *)unscales)[threadIdx.x] = unscale[first_place + threadIdx.x];

    // A thread copies COPIES quads of each block.
    __shared__ uint4 activations[STAGES][TILE_SLOTS * QUADS];
    const uint4 *next_copy[COPIES];
    for (u32 i = 0; i < COPIES; ++i) {
        const u32 quad = threadIdx.x + i * GROUP;
        next_copy[i] = parts + (first_place + quad / QUADS) * blocks * QUADS + quad % QUADS;
    }
    const auto copy_activations = [&](const u32 b) {
        if (b < blocks)
            for (u32 i = 0; i < COPIES; ++i) {
                copy(&activations[b % STAGES][threadIdx.x + i * GROUP], next_copy[i]);
                next_copy[i] += QUADS;
            }
        // Without copies as well, so that batches can be counted.
        close();
    };

    const u32 *next_code = code + (expert * blocks * 4 + t) * rows;
    const u8 *next_scale = scale + expert * blocks * rows;
    u32 words[4], scale_bytes[4];
    const auto load_weights = [&] {
        for (u32 r = 0; r < 4; ++r) {
            words[r] = next_code[row[r]];
            scale_bytes[r] = next_scale[row[r]];
        }
        next_code += (u64)4 * rows;
        next_scale += rows;
    };

    // [half of the rows][eight slots][as `multiply` has it]
    float total[2][4][4] = {};

    for (u32 b = 0; b < STAGES - 1; ++b)
        copy_activations(b);
    load_weights();
    for (u32 b = 0; b < blocks; ++b) {
        u32 a[4][4];
        float block_scale[4];
        for (u32 r = 0; r < 4; ++r) {
            for (int i = 0; i < 4; ++i)
                a[r][i] = e2m1_pair_bf16(words[r], i);
            block_scale[r] = e8m0(scale_bytes[r]);
        }
        if (b + 1 < blocks)
            load_weights();

        // After this everyone's copies of block b are there, and nobody reads those of block b - 1 any more.
        wait();
        __syncthreads();
        copy_activations(b + STAGES - 1);
        const uint4 *from = &activations[b % STAGES][g * QUADS + t];
        // Four sums at a time: enough to keep the tensor cores busy, and all that fits into registers.
#pragma unroll
        for (u32 n0 = 0; n0 < 4; n0 += 2) {
            float sum[2][2][4] = {};
#pragma unroll
            for (int part = PARTS - 1; part >= 0; --part)
#pragma unroll
                for (u32 n = 0; n < 2; ++n) {
                    const uint4 x = from[8 * (n0 + n) * QUADS + part * 4];
#pragma unroll
                    for (u32 m = 0; m < 2; ++m) {
                        const u32 *upper = a[2 * m], *lower = a[2 * m + 1];
                        multiply(sum[m][n], sum[m][n], upper[0], lower[0], upper[1], lower[1], x.x, x.y);
                        multiply(sum[m][n], sum[m][n], upper[2], lower[2], upper[3], lower[3], x.z, x.w);
                    }
                }
#pragma unroll
            for (u32 n = 0; n < 2; ++n) {
                // Columns of results are slots 2t and 2t + 1 of each eight.
                const float2 back = unscales[4 * (n0 + n) + t];
                for (u32 m = 0; m < 2; ++m)
                    for (u32 c = 0; c < 4; ++c)
                        total[m][n0 + n][c] += block_scale[2 * m + c / 2] * (sum[m][n][c] * (c % 2 ? back.y : back.x));
            }
        }
    }

    for (u32 n = 0; n < 4; ++n) {
        for (u32 c = 0; c < 2; ++c) {
            const u32 slot = sorted[first_place + 8 * n + 2 * t + c];
            if (slot == NO_SLOT)
                continue;
            const u64 at = out_view.offset + slot % used * out_view.stride1 + slot / used * out_view.stride2;
            for (u32 r = 0; r < 4; ++r)
                if (first_row + 8 * r + g < rows)
                    ((float *)(out + at))[row[r]] = total[r / 2][n][r % 2 * 2 + c];
        }
    }
#endif
}
