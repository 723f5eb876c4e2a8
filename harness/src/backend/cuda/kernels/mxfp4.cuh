// The numbers in an MXFP4 block.

// The scale 2^(e - 127): byte 0 is subnormal, byte 255 is NaN.
__device__ __forceinline__ float e8m0(const u32 e)
{
    return __uint_as_float(e == 0 ? 0x00400000u : e == 255 ? 0x7fc00000u : e << 23);
}

// The value of a code: sign, two bits of exponent, one of mantissa. Put where a floating-point type has its sign, the low
// bits of its exponent and the top of its mantissa, they are the value times a power of two, subnormals of the code
// included, and the product with the inverse power is exact. A table would be read at another place by every thread.
__device__ __forceinline__ float e2m1(const u32 code)
{
    const u32 bits = (code & 8u) << 28 | (code & 7u) << 22;
    return __uint_as_float(bits) * 0x1p126f;
}

// A word shifted to the left by any amount.
__device__ __forceinline__ u32 shifted(const u32 word, const int left)
{
    return left >= 0 ? word << left : word >> -left;
}

// The values of codes i and i + 4 of a word, as two f16: the first in the low half.
__device__ __forceinline__ u32 e2m1_pair_f16(const u32 word, const int i)
{
    const u32 bits = (shifted(word, 12 - 4 * i) & 0x80008000u) | (shifted(word, 9 - 4 * i) & 0x0e000e00u);
    u32 pair;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(bits), "r"(0x74007400u)); // 2^14
    return pair;
}

// Both f16 of a pair.
__device__ __forceinline__ void split_f16(const u32 pair, float *low, float *high)
{
    asm("{\n\t"
        ".reg .b16 l, h;\n\t"
        "mov.b32 {l, h}, %2;\n\t"
        "cvt.f32.f16 %0, l;\n\t"
        "cvt.f32.f16 %1, h;\n\t"
        "}"
        : "=f"(*low), "=f"(*high)
        : "r"(pair));
}

#if __CUDA_ARCH__ >= 800
// The same pair as two bf16.
__device__ __forceinline__ u32 e2m1_pair_bf16(const u32 word, const int i)
{
    const u32 bits = (shifted(word, 12 - 4 * i) & 0x80008000u) | (shifted(word, 6 - 4 * i) & 0x01c001c0u);
    u32 pair;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(bits), "r"(0x7e807e80u), "r"(0x80008000u)); // 2^126, -0
    return pair;
}
#endif
