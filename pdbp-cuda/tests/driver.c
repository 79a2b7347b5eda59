/* A library with the functions of the CUDA driver that this crate calls, for machines without one. The device's memory is the
   host's, and copies are made at once. The environment says what is wrong with it:

     DRIVER_VERSION  the version, 12020 if it is not set
     DRIVER_DEVICES  how many devices there are, 1 if it is not set
     DRIVER_FAILS    NAME=CODE: that function does nothing and returns that code */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_ALLOCATED = 2, NO_DEVICE = 100 };

static int number(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

static int fails(const char *function) {
    const char *plan = getenv("DRIVER_FAILS");
    size_t length = strlen(function);
    return plan && !strncmp(plan, function, length) && plan[length] == '=' ? atoi(plan + length + 1) : 0;
}

#define CALL(name, parameters, body)      \
    int name parameters {                 \
        int code = fails(#name);          \
        if (code) return code;            \
        body;                             \
        return 0;                         \
    }

static __thread void *current;
static char context;

CALL(cuDriverGetVersion, (int *version), *version = number("DRIVER_VERSION", 12020))
CALL(cuInit, (unsigned flags), (void)flags; if (!number("DRIVER_DEVICES", 1)) return NO_DEVICE)
CALL(cuDeviceGetCount, (int *count), *count = number("DRIVER_DEVICES", 1))
CALL(cuDeviceGet, (int *device, int ordinal), *device = ordinal)
CALL(cuDeviceGetAttribute, (int *value, int attribute, int device), (void)attribute; (void)device; *value = 1)
CALL(cuDeviceGetName, (char *name, int length, int device), (void)device; strncpy(name, "stand-in", length))
CALL(cuDeviceTotalMem_v2, (size_t *bytes, int device), (void)device; *bytes = (size_t)1 << 30)
CALL(cuDevicePrimaryCtxRetain, (void **out, int device), (void)device; *out = &context)
CALL(cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *active), (void)device; *flags = 0; *active = 0)
CALL(cuDevicePrimaryCtxRelease_v2, (int device), (void)device)
CALL(cuCtxGetCurrent, (void **out), *out = current)
CALL(cuCtxSetCurrent, (void *to), current = to)
CALL(cuCtxSynchronize, (void), )
CALL(cuMemAlloc_v2, (uint64_t *out, size_t bytes), if (!(*out = (uintptr_t)malloc(bytes))) return NOT_ALLOCATED)
CALL(cuMemFree_v2, (uint64_t at), free((void *)(uintptr_t)at))
CALL(cuMemsetD8_v2, (uint64_t at, unsigned char byte, size_t bytes), memset((void *)(uintptr_t)at, byte, bytes))
CALL(cuMemHostAlloc, (void **out, size_t bytes, unsigned flags),
     if (flags != 1 || posix_memalign(out, 4096, bytes)) return NOT_ALLOCATED; memset(*out, 0xEE, bytes))
CALL(cuMemFreeHost, (void *at), free(at))
CALL(cuMemHostRegister_v2, (void *at, size_t bytes, unsigned flags), if (!at || !bytes || flags != 1) return 1)
CALL(cuMemHostUnregister, (void *at), if (!at) return 1)
CALL(cuStreamCreate, (void **out, unsigned flags), (void)flags; *out = malloc(1))
CALL(cuStreamDestroy_v2, (void *stream), free(stream))
CALL(cuStreamSynchronize, (void *stream), (void)stream)
CALL(cuStreamWaitEvent, (void *stream, void *event, unsigned flags), (void)stream; (void)event; (void)flags)
CALL(cuEventCreate, (void **out, unsigned flags), if (flags != 3) return 1; *out = malloc(1))
CALL(cuEventRecord, (void *event, void *stream), (void)event; (void)stream)
CALL(cuEventQuery, (void *event), (void)event)
CALL(cuEventSynchronize, (void *event), (void)event)
CALL(cuEventDestroy_v2, (void *event), free(event))
CALL(cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t bytes, void *stream),
     (void)stream; memcpy(to, (void *)(uintptr_t)from, bytes))
CALL(cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t bytes, void *stream),
     (void)stream; memcpy((void *)(uintptr_t)to, from, bytes))
CALL(cuMemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t bytes, void *stream),
     (void)stream; memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes))

int cuGetErrorString(int code, const char **text) {
    (void)code;
    *text = "as planned";
    return 0;
}
