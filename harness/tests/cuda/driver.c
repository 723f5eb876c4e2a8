// A CUDA driver and an NVRTC that own no GPU: memory is the host's, launches do nothing, and
// transfers that are queued are made when someone waits.
//
// Numbers of the environment say how they behave; see `number` calls. Compiled with -DNO_SYMBOLS it is a library that
// has next to nothing, as an old driver would.

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t number(const char *name, size_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

int cuInit(unsigned flags)
{
    (void)flags;
    return (int)number("FAKE_INIT", 0);
}

#ifndef NO_SYMBOLS

typedef unsigned long long address;

static size_t in_use;

static size_t total(void)
{
    return number("FAKE_MEMORY", 1 << 30);
}

int cuDriverGetVersion(int *version)
{
    *version = (int)number("FAKE_VERSION", 13000);
    return 0;
}

int cuGetErrorName(int code, const char **name)
{
    *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
        : code == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : NULL;
    return *name ? 0 : 1;
}

int cuGetErrorString(int code, const char **text)
{
    *text = code == 2 ? "out of memory" : NULL;
    return *text ? 0 : 1;
}

int cuDeviceGetCount(int *count)
{
    *count = (int)number("FAKE_COUNT", 1);
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

int cuDeviceGetName(char *name, int len, int device)
{
    snprintf(name, (size_t)len, "Fake GPU %d", device);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    // 75 and 76 are the two halves of the compute capability; 18 is whether the GPU is integrated.
    *value = attribute == 75 ? 9 : attribute == 76 || attribute == 18 ? 0 : 1;
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    (void)device;
    *bytes = total();
    return 0;
}

int cuDeviceGetPCIBusId(char *id, int len, int device)
{
    // As if so many devices before it were hidden.
    snprintf(id, (size_t)len, "0000:%02X:00.0", 0x3a + device + (int)number("FAKE_HIDDEN", 0));
    return 0;
}

int cuDeviceGetUuid_v2(char *uuid, int device)
{
    memset(uuid, device, 16);
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    (void)device;
    *context = &in_use;
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    return 0;
}

int cuCtxSetCurrent(void *context)
{
    return context == &in_use ? 0 : 201;
}

// Transfers that were queued: nothing moves before someone waits.
static struct transfer
{
    address to, from;
    size_t bytes;
} *queued;
static size_t queued_count;

static void drain(void)
{
    for (size_t i = 0; i < queued_count; ++i)
        memcpy((void *)queued[i].to, (void *)queued[i].from, queued[i].bytes);
    queued_count = 0;
}

static int queue(address to, address from, size_t bytes)
{
    static size_t transfers;
    // The number of a transfer that fails.
    if (++transfers == number("FAKE_TRANSFER", 0))
        return 700;
    queued = realloc(queued, (queued_count + 1) * sizeof *queued);
    queued[queued_count++] = (struct transfer){ to, from, bytes };
    return 0;
}

int cuCtxSynchronize(void)
{
    drain();
    return (int)number("FAKE_SYNC", 0);
}

int cuMemGetInfo_v2(size_t *free, size_t *all)
{
    *free = total() - in_use;
    *all = total();
    return 0;
}

int cuMemAlloc_v2(address *at, size_t bytes)
{
    if (bytes > total() - in_use)
        return 2;
    size_t *memory = malloc(bytes + 64);
    *memory = bytes;
    in_use += bytes;
    *at = (address)memory + 64;
    return 0;
}

int cuMemFree_v2(address at)
{
    drain();
    size_t *memory = (size_t *)(at - 64);
    in_use -= *memory;
    free(memory);
    return 0;
}

int cuMemcpyHtoD_v2(address to, const void *from, size_t bytes)
{
    drain();
    memcpy((void *)to, from, bytes);
    return 0;
}

int cuMemcpyDtoH_v2(void *to, address from, size_t bytes)
{
    drain();
    memcpy(to, (void *)from, bytes);
    return 0;
}

int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *stream)
{
    (void)stream;
    return queue(to, (address)from, bytes);
}

int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *stream)
{
    (void)stream;
    return queue((address)to, from, bytes);
}

int cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, void *stream)
{
    (void)stream;
    return queue(to, from, bytes);
}

// CUDA_MEMCPY2D_v2, as its documentation gives it.
struct rectangle
{
    size_t from_x, from_y;
    int from_kind;
    const void *from_host;
    address from_device;
    void *from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    int to_kind;
    void *to_host;
    address to_device;
    void *to_array;
    size_t to_pitch;
    size_t width, height;
};

int cuMemcpy2DAsync_v2(const struct rectangle *r, void *stream)
{
    (void)stream;
    address from = r->from_kind == 1 ? (address)r->from_host : r->from_device;
    address to = r->to_kind == 1 ? (address)r->to_host : r->to_device;
    if (r->from_pitch < r->width || r->to_pitch < r->width || r->from_x || r->from_y || r->to_x || r->to_y)
        return 1;
    int code = 0;
    for (size_t i = 0; i < r->height && !code; ++i)
        code = queue(to + i * r->to_pitch, from + i * r->from_pitch, r->width);
    return code;
}

int cuMemsetD32Async(address to, unsigned word, size_t count, void *stream)
{
    (void)stream;
    drain();
    for (size_t i = 0; i < count; ++i)
        ((unsigned *)to)[i] = word;
    return 0;
}

int cuModuleLoadData(void **module, const void *image)
{
    *module = (void *)image;
    return 0;
}

int cuModuleUnload(void *module)
{
    (void)module;
    return 0;
}

// The kernels of moves.cu, the only ones that do anything here.
static const char gather[] = "gather", spread[] = "spread";

struct piece
{
    address here, there, here_stride, there_stride, shape;
};

static int move_pieces(const struct piece *pieces, address staging, unsigned count, int is_gather)
{
    int code = 0;
    for (const struct piece *p = pieces; p < pieces + count && !code; ++p)
        for (address row = 0; row < p->shape >> 32 && !code; ++row)
        {
            address here = p->here + row * p->here_stride, there = staging + p->there + row * p->there_stride;
            code = queue(is_gather ? there : here, is_gather ? here : there, (unsigned)p->shape);
        }
    return code;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = !strcmp(name, "gather") ? (void *)gather : !strcmp(name, "spread") ? (void *)spread : module;
    return *function == module ? 0 : (int)number("FAKE_MOVES", 0);
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **params, void **extra)
{
    (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)params;
    const address *packed = extra[1];
    if (function == gather || function == spread)
        return move_pieces((const struct piece *)packed[0], packed[1], x, function == gather);
    return (int)number("FAKE_LAUNCH", 0);
}

int nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 0;
    return 0;
}

int nvrtcGetNumSupportedArchs(int *count)
{
    *count = 1;
    return 0;
}

int nvrtcGetSupportedArchs(int *archs)
{
    archs[0] = (int)number("FAKE_ARCH", 90);
    return 0;
}

int nvrtcCreateProgram(void **program, const char *source, const char *name, int count, const char **headers,
                       const char **names)
{
    (void)source, (void)name, (void)count, (void)headers, (void)names;
    *program = &in_use;
    return 0;
}

int nvrtcDestroyProgram(void **program)
{
    *program = NULL;
    return 0;
}

int nvrtcCompileProgram(void *program, int count, const char **options)
{
    (void)program, (void)count, (void)options;
    return (int)number("FAKE_COMPILE", 0);
}

static int image(size_t *bytes, char *to)
{
    const char text[] = "a.cu(3): error: as asked";
    if (bytes)
        *bytes = sizeof text;
    if (to)
        memcpy(to, text, sizeof text);
    return 0;
}

int nvrtcGetProgramLogSize(void *program, size_t *bytes)
{
    (void)program;
    return image(bytes, NULL);
}

int nvrtcGetProgramLog(void *program, char *log)
{
    (void)program;
    return image(NULL, log);
}

int nvrtcGetPTXSize(void *program, size_t *bytes)
{
    (void)program;
    return image(bytes, NULL);
}

int nvrtcGetPTX(void *program, char *to)
{
    (void)program;
    return image(NULL, to);
}

int nvrtcGetCUBINSize(void *program, size_t *bytes)
{
    (void)program;
    return image(bytes, NULL);
}

int nvrtcGetCUBIN(void *program, char *to)
{
    (void)program;
    return image(NULL, to);
}

const char *nvrtcGetErrorString(int code)
{
    return code == 6 ? "NVRTC_ERROR_COMPILATION" : "some error";
}

#endif
