// The numbers in an MXFP4 block.

// The scale 2^(e - 127): byte 0 is subnormal, byte 255 is NaN.
__device__ __forceinline__ float e8m0(const u32 e)
{
    return __uint_as_float(e == 0 ? 0x00400000u : e == 255 ? 0x7fc00000u : e << 23);
}

// The value of a code: sign, two bits of exponent, one of mantissa. Put where f32 has sign, exponent and mantissa they
// are the value times 2^-126, subnormals of the code included, and the product is exact. A table would be read at
// another place by every thread.
__device__ __forceinline__ float e2m1(const u32 code)
{
    const u32 bits = (code & 8u) << 28 | (code & 7u) << 22;
    return __uint_as_float(bits) * 0x1p126f;
}
