// An OpenCL loader that breaks while it is asked for platforms, as LOADER says: it prints, aborts, throws, or hands out
// a platform that crashes when it is looked at.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unwind.h>

static struct _Unwind_Exception exception;

static int is(const char *what)
{
    const char *how = getenv("LOADER");
    return how && strstr(how, what) != NULL;
}

int clGetPlatformIDs(unsigned entries, void **platforms, unsigned *count)
{
    if (is("print")) {
        puts("{\"type\":\"probed\",\"probe\":{\"missing\":\"a lie\"}}");
        fflush(stdout);
    }
    if (is("abort"))
        abort();
    if (is("throw"))
        // Nobody catches it.
        exit(40 + (int)_Unwind_RaiseException(&exception));
    if (is("exit"))
        exit(0);
    if (is("hand out")) {
        if (platforms && entries)
            platforms[0] = &exception;
        if (count)
            *count = 1;
        return 0;
    }
    // CL_PLATFORM_NOT_FOUND_KHR
    return -1001;
}

int clGetPlatformInfo(void *platform, unsigned name, size_t bytes, void *to, size_t *needed)
{
    (void)platform, (void)name, (void)bytes, (void)to, (void)needed;
    return *(volatile int *)NULL;
}
