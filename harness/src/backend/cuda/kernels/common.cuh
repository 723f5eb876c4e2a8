// What every kernel uses. The run-time compiler is given no headers but these.
//
// All launches have one dimension of blocks and one of threads, GROUP threads to a block, and kernels check their bounds.

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// A kernel as the host finds it, by its plain name.
#define KERNEL extern "C" __global__ void __launch_bounds__(GROUP)

// Place of a tensor in its allocation: byte offset, and byte strides of dimensions 1, 2 and 3.
struct View {
    u64 offset, stride1, stride2, stride3;
};

// The number of this thread among all of the launch, which may exceed 32 bits.
__device__ __forceinline__ u64 thread_number()
{
    return (u64)blockIdx.x * GROUP + threadIdx.x;
}
