// The functions for devices, memory and copies.
#include "driver.h"

using namespace stand_in;

namespace {

constexpr size_t DEVICE_MEMORY = size_t(16) << 30;

int copy(const char *call, void *stream, Use to, Use from) {
    return ask(call, stream, {to, from}, [=] {
        memmove(reinterpret_cast<void *>(to.at), reinterpret_cast<const void *>(from.at), from.bytes);
    });
}

// Frees memory that nothing uses any more.
bool give_back(const char *call, Kind kind, uint64_t at) {
    const auto [begin, bytes] = memory.around(at);
    if (!memory.begins(kind, at)) return false;
    const std::string user = pending.user_of(begin, bytes);
    if (!user.empty()) fatal(std::string(call) + ": a memory of " + std::to_string(bytes) + " bytes is given back that " + user + " uses yet");
    return memory.free(kind, reinterpret_cast<void *>(at));
}

int check_device(const char *function, uint64_t at, size_t bytes) {
    if (memory.has(at, bytes)) return SUCCESS;
    return wrong(INVALID_VALUE, "%s: %zu bytes do not lie in one memory of the device", function, bytes);
}

uint64_t address(const void *at) { return reinterpret_cast<uintptr_t>(at); }

// The number of the device whose context is current.
int device_of_thread() { return int(current - contexts); }

}  // namespace

// ── The driver and its devices

DRIVER cuDriverGetVersion(int *version) {
    CALL(Needs::Nothing);
    *version = number("DRIVER_VERSION", 12020);
    return SUCCESS;
}
DRIVER cuInit(unsigned) {
    CALL(Needs::Nothing);
    return number("DRIVER_DEVICES", 1) ? SUCCESS : NO_DEVICE;
}
DRIVER cuGetErrorString(int code, const char **text) {
    *text = code == ILLEGAL_ADDRESS ? "what is said on standard error, or as planned" : "as planned";
    return SUCCESS;
}
DRIVER cuDeviceGetCount(int *count) {
    CALL(Needs::Nothing);
    *count = number("DRIVER_DEVICES", 1);
    return SUCCESS;
}
DRIVER cuDeviceGet(int *device, int ordinal) {
    CALL(Needs::Nothing);
    *device = ordinal;
    return ordinal >= 0 && ordinal < number("DRIVER_DEVICES", 1) && ordinal < MOST_DEVICES ? SUCCESS : INVALID_DEVICE;
}
DRIVER cuDeviceGetAttribute(int *value, int attribute, int) {
    CALL(Needs::Nothing);
    constexpr int MULTIPROCESSORS = 16;
    *value = attribute == MULTIPROCESSORS ? 2 : 1;
    return SUCCESS;
}
DRIVER cuDeviceGetName(char *name, int length, int) {
    CALL(Needs::Nothing);
    snprintf(name, size_t(length), "stand-in");
    return SUCCESS;
}
DRIVER cuDeviceTotalMem_v2(size_t *bytes, int) {
    CALL(Needs::Nothing);
    *bytes = DEVICE_MEMORY;
    return SUCCESS;
}
DRIVER cuDevicePrimaryCtxRetain(void **out, int device) {
    CALL(Needs::Nothing);
    *out = &contexts[device];
    contexts[device].retained++;
    return SUCCESS;
}
DRIVER cuDevicePrimaryCtxRelease_v2(int device) {
    CALL(Needs::Nothing);
    contexts[device].retained--;
    return SUCCESS;
}
DRIVER cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    CALL(Needs::Nothing);
    *flags = 0;
    *active = contexts[device].retained > 0;
    return SUCCESS;
}
DRIVER cuCtxGetCurrent(void **out) {
    CALL(Needs::Nothing);
    const int code = number("DRIVER_STRAY_ERRORS", 0);
    if (std::exchange(stray, false) && code) return code;
    *out = current;
    return SUCCESS;
}
DRIVER cuCtxSetCurrent(void *to) {
    CALL(Needs::Nothing);
    current = static_cast<Context *>(to);
    return SUCCESS;
}
DRIVER cuCtxSynchronize() {
    CALL(Needs::Context);
    settle();
    stray = false;
    return lost;
}

// ── Memory

static int allocate(Kind kind, uint64_t *out, size_t bytes) {
    if (!bytes) return wrong(INVALID_VALUE, "an allocation of 0 bytes");
    if (bytes > DEVICE_MEMORY - memory.taken()) return OUT_OF_MEMORY;
    void *at = memory.allocate(kind, bytes, device_of_thread());
    *out = address(at);
    return at ? SUCCESS : OUT_OF_MEMORY;
}
DRIVER cuMemAlloc_v2(uint64_t *out, size_t bytes) {
    CALL(Needs::Context);
    return allocate(Kind::Device, out, bytes);
}
DRIVER cuMemAllocAsync(uint64_t *out, size_t bytes, void *) {
    CALL(Needs::Context);
    return allocate(Kind::Pool, out, bytes);
}
DRIVER cuMemGetInfo_v2(size_t *left, size_t *all) {
    CALL(Needs::Context);
    *left = DEVICE_MEMORY - memory.taken();
    *all = DEVICE_MEMORY;
    return SUCCESS;
}
DRIVER cuMemFree_v2(uint64_t at) {
    CALL(Needs::Context);
    // Of memory that came in the order of a stream it waits for nothing.
    if (memory.begins(Kind::Pool, at)) return give_back("cuMemFree", Kind::Pool, at) ? lost : INVALID_VALUE;
    settle();
    const std::string why = memory.damage();
    if (!why.empty()) return lost = wrong(ILLEGAL_ADDRESS, "cuMemFree: %s", why.c_str());
    return give_back("cuMemFree", Kind::Device, at) ? lost : wrong(INVALID_VALUE, "cuMemFree of what is no memory");
}
DRIVER cuMemFreeAsync(uint64_t at, void *stream) {
    CALL(Needs::Context);
    if (!memory.begins(Kind::Pool, at)) return wrong(INVALID_VALUE, "cuMemFreeAsync of what is no memory of the kind");
    return ask("cuMemFreeAsync", stream, {}, [=] { give_back("cuMemFreeAsync", Kind::Pool, at); });
}
DRIVER cuPointerGetAttribute(void *out, int attribute, uint64_t at) {
    CALL(Needs::Context);
    constexpr int DEVICE_ORDINAL = 9;
    const int owner = memory.owner_of(at);
    if (attribute != DEVICE_ORDINAL || owner < 0) return INVALID_VALUE;
    *static_cast<int *>(out) = owner;
    return SUCCESS;
}
static int fill(const char *call, uint64_t at, unsigned char byte, size_t bytes, void *stream) {
    if (int code = check_device(call, at, bytes)) return code;
    return ask(call, stream, {on_device(at, bytes, true)}, [=] { memset(reinterpret_cast<void *>(at), byte, bytes); });
}
DRIVER cuMemsetD8_v2(uint64_t at, unsigned char byte, size_t bytes) {
    CALL(Needs::Context);
    // Not ordered with other streams, and over later.
    return fill("cuMemsetD8", at, byte, bytes, nullptr);
}
DRIVER cuMemsetD8Async(uint64_t at, unsigned char byte, size_t bytes, void *stream) {
    CALL(Needs::Context);
    return fill("cuMemsetD8Async", at, byte, bytes, stream);
}
DRIVER cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    CALL(Needs::Context);
    if (!(flags & 1) || !bytes) return wrong(INVALID_VALUE, "cuMemHostAlloc of %zu bytes, not for all contexts", bytes);
    *out = memory.allocate(Kind::Host, bytes, -1);
    return *out ? SUCCESS : OUT_OF_MEMORY;
}
// Neither of the two says that it waits.
DRIVER cuMemFreeHost(void *at) {
    CALL(Needs::Context);
    return give_back("cuMemFreeHost", Kind::Host, address(at)) ? lost : wrong(INVALID_VALUE, "cuMemFreeHost of what is no memory");
}
DRIVER cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags) {
    CALL(Needs::Context);
    if (!at || !bytes || !(flags & 1)) return wrong(INVALID_VALUE, "cuMemHostRegister of %zu bytes, not for all contexts", bytes);
    return memory.enter(at, bytes) ? SUCCESS : ALREADY_REGISTERED;
}
DRIVER cuMemHostUnregister(void *at) {
    CALL(Needs::Context);
    const bool given = give_back("cuMemHostUnregister", Kind::Registered, address(at));
    return given ? lost : wrong(NOT_REGISTERED, "cuMemHostUnregister of what is not registered");
}

// ── Copies

static int copy_out(const char *call, void *to, uint64_t from, size_t bytes, void *stream) {
    if (int code = check_device(call, from, bytes)) return code;
    return copy(call, stream, on_host(to, bytes, true), on_device(from, bytes, false));
}
static int copy_in(const char *call, uint64_t to, const void *from, size_t bytes, void *stream) {
    if (int code = check_device(call, to, bytes)) return code;
    return copy(call, stream, on_device(to, bytes, true), on_host(from, bytes, false));
}
DRIVER cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    CALL(Needs::Context);
    return copy_out("cuMemcpyDtoHAsync", to, from, bytes, stream);
}
// CUDA_MEMCPY2D: rows of bytes that lie apart, and where they go.
struct Rows {
    struct Place {
        size_t x, y;
        int type;
        void *host;
        uint64_t device;
        void *array;
        size_t pitch;
    } source, dest;
    size_t width, height;
};
DRIVER cuMemcpy2DAsync_v2(const Rows *rows, void *stream) {
    CALL(Needs::Context);
    constexpr int HOST = 1, DEVICE = 2;
    const auto &[source, dest, width, height] = *rows;
    const bool is_whole = !(source.x | source.y | dest.x | dest.y) && width <= source.pitch && width <= dest.pitch;
    if (source.type != DEVICE || dest.type != HOST || !is_whole)
        return wrong(INVALID_VALUE, "cuMemcpy2DAsync of anything but whole rows from the device to the host");
    for (size_t row = 0; row < height; row++) {
        char *to = static_cast<char *>(dest.host) + row * dest.pitch;
        if (int code = copy_out("cuMemcpy2DAsync", to, source.device + row * source.pitch, width, stream)) return code;
    }
    return SUCCESS;
}
DRIVER cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    CALL(Needs::Context);
    return copy_in("cuMemcpyHtoDAsync", to, from, bytes, stream);
}
DRIVER cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    CALL(Needs::Context);
    const char *call = "cuMemcpyDtoDAsync";
    if (int code = check_device(call, to, bytes)) return code;
    if (int code = check_device(call, from, bytes)) return code;
    return copy(call, stream, on_device(to, bytes, true), on_device(from, bytes, false));
}
DRIVER cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    CALL(Needs::Context);
    const int code = copy_out("cuMemcpyDtoH", to, from, bytes, nullptr);
    default_stream.finish();
    return code ? code : lost;
}
DRIVER cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    CALL(Needs::Context);
    const int code = copy_in("cuMemcpyHtoD", to, from, bytes, nullptr);
    default_stream.finish();
    return code ? code : lost;
}
