// A library with those functions of the CUDA driver that this workspace calls, for machines without one. The device's memory is the
// host's. What programs do wrong is said on standard error, and the call fails. The environment says what is wrong with the driver:
//
//   DRIVER_VERSION  the version, 12020 if it is not set
//   DRIVER_DEVICES  how many devices there are, 1 if it is not set
//   DRIVER_FAILS    NAME=CODE: that function does nothing and returns that code; NAME=CODE@N: only from its N-th call on
//   DRIVER_DELAY    what is asked for on a stream is not done at once, but when a thread waits for an event behind it, or has asked
//                   for that so many times
//   DRIVER_MPI      1: MPI knows devices, for programs that have loaded this library before all others (LD_PRELOAD); since the
//                   device's memory is the host's, each does
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "block.h"
#include "kernels.h"
#include "memory.h"
#include "ptx.h"
#include "stream.h"

using namespace stand_in;

namespace {

enum Code {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    NOT_SUPPORTED = 801,
};

constexpr size_t DEVICE_MEMORY = size_t(16) << 30;
constexpr unsigned SHARED_MEMORY = 48 << 10;
// What drivers of CUDA 12.2 take.
constexpr int PTX_VERSION = 82;

struct Function {
    const Kernel *kernel;
    Entry entry;
    std::string name;
};
struct Module {
    Ptx ptx;
    std::set<std::unique_ptr<Function>> functions;
};

std::mutex mutex;
Memory memory;
// Of handles that are alive.
std::set<std::shared_ptr<Stream>> streams;
std::set<void *> events, functions, modules;
Stream default_stream;
char context;
// How many times it was retained and not released.
int contexts;
thread_local void *current;
// What ended the context, and is said ever since.
int lost;

int number(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

// Says what a program does wrong.
__attribute__((format(printf, 2, 3))) int wrong(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("stand-in driver: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return code;
}

int planned(const char *function) {
    const char *plan = getenv("DRIVER_FAILS");
    const size_t length = strlen(function);
    if (!plan || strncmp(plan, function, length) || plan[length] != '=') return 0;
    static std::atomic<int> calls{0};
    int code = 0, from = 0;
    sscanf(plan + length + 1, "%d@%d", &code, &from);
    return ++calls >= from ? code : 0;
}

enum class Needs { Nothing, Context };

int begin(const char *function, Needs needs) {
    if (int code = planned(function)) return code;
    if (needs == Needs::Nothing) return SUCCESS;
    if (!current) return wrong(INVALID_CONTEXT, "%s: no context is current on this thread", function);
    return lost;
}

std::shared_ptr<Stream> stream_of(void *handle) {
    // The default stream, which nobody owns.
    if (!handle) return std::shared_ptr<Stream>(std::shared_ptr<Stream>(), &default_stream);
    for (const auto &stream : streams)
        if (stream.get() == handle) return stream;
    return nullptr;
}

Event *event_of(void *handle) { return events.count(handle) ? static_cast<Event *>(handle) : nullptr; }

// Does all that was asked for.
void settle() {
    default_stream.finish();
    for (const auto &stream : streams) stream->finish();
}

// Has a stream do something, now or later.
int ask(void *handle, std::function<void()> work) {
    auto stream = stream_of(handle);
    if (!stream) return wrong(INVALID_HANDLE, "no such stream");
    // Of a context that was lost meanwhile nothing is done.
    stream->ask([work = std::move(work)] { lost ? void() : work(); });
    if (!number("DRIVER_DELAY", 0)) stream->finish();
    return SUCCESS;
}

int copy(void *stream, uint64_t to, uint64_t from, size_t bytes) {
    return ask(stream, [=] { memmove(reinterpret_cast<void *>(to), reinterpret_cast<const void *>(from), bytes); });
}

// What copies to the device read that were not done yet.
std::multimap<uint64_t, size_t> sources;

// Makes nonsense of what a copy to the host will write, so that it shows who reads too early; unless a copy that comes before is
// to read it.
void spoil(uint64_t at, size_t bytes) {
    for (const auto &[begin, length] : sources)
        if (begin < at + bytes && at < begin + length) return;
    memset(reinterpret_cast<void *>(at), 0xEE, bytes);
}

int check_device(const char *function, uint64_t at, size_t bytes) {
    if (memory.has(at, bytes)) return SUCCESS;
    return wrong(INVALID_VALUE, "%s: %zu bytes do not lie in one memory of the device", function, bytes);
}

void run_kernel(const Launch &launch, const std::string &name, unsigned blocks, unsigned threads) {
    std::string why;
    for (uint64_t at : launch.addresses)
        if (at && !memory.is_known(at)) why = "an argument that is no address of the device";
    if (why.empty()) why = run(launch.run, blocks, threads);
    if (why.empty()) why = memory.damage();
    if (!why.empty()) lost = wrong(ILLEGAL_ADDRESS, "kernel %s: %s", name.c_str(), why.c_str());
}

uint64_t address(const void *at) { return reinterpret_cast<uintptr_t>(at); }

}  // namespace

#define CALL(needs)                           \
    std::lock_guard<std::mutex> lock(mutex);  \
    if (int code = begin(__func__, needs)) return code
#define DRIVER extern "C" __attribute__((visibility("default"))) int

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
    return ordinal >= 0 && ordinal < number("DRIVER_DEVICES", 1) ? SUCCESS : INVALID_DEVICE;
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
DRIVER cuDevicePrimaryCtxRetain(void **out, int) {
    CALL(Needs::Nothing);
    *out = &context;
    contexts++;
    return SUCCESS;
}
DRIVER cuDevicePrimaryCtxRelease_v2(int) {
    CALL(Needs::Nothing);
    contexts--;
    return SUCCESS;
}
DRIVER cuDevicePrimaryCtxGetState(int, unsigned *flags, int *active) {
    CALL(Needs::Nothing);
    *flags = 0;
    *active = contexts > 0;
    return SUCCESS;
}
DRIVER cuCtxGetCurrent(void **out) {
    CALL(Needs::Nothing);
    *out = current;
    return SUCCESS;
}
DRIVER cuCtxSetCurrent(void *to) {
    CALL(Needs::Nothing);
    current = to;
    return SUCCESS;
}
DRIVER cuCtxSynchronize() {
    CALL(Needs::Context);
    settle();
    return lost;
}

// ── Memory

DRIVER cuMemAlloc_v2(uint64_t *out, size_t bytes) {
    CALL(Needs::Context);
    if (!bytes) return wrong(INVALID_VALUE, "cuMemAlloc of 0 bytes");
    if (bytes > DEVICE_MEMORY - memory.taken()) return OUT_OF_MEMORY;
    void *at = memory.allocate(Kind::Device, bytes);
    *out = address(at);
    return at ? SUCCESS : OUT_OF_MEMORY;
}
DRIVER cuMemFree_v2(uint64_t at) {
    CALL(Needs::Context);
    settle();
    const std::string why = memory.damage();
    if (!why.empty()) return lost = wrong(ILLEGAL_ADDRESS, "cuMemFree: %s", why.c_str());
    return memory.free(Kind::Device, reinterpret_cast<void *>(at)) ? lost : wrong(INVALID_VALUE, "cuMemFree of what is no memory");
}
DRIVER cuMemsetD8_v2(uint64_t at, unsigned char byte, size_t bytes) {
    CALL(Needs::Context);
    if (int code = check_device("cuMemsetD8", at, bytes)) return code;
    // Not ordered with other streams, and over later.
    return ask(nullptr, [=] { memset(reinterpret_cast<void *>(at), byte, bytes); });
}
DRIVER cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    CALL(Needs::Context);
    if (!(flags & 1) || !bytes) return wrong(INVALID_VALUE, "cuMemHostAlloc of %zu bytes, not for all contexts", bytes);
    *out = memory.allocate(Kind::Host, bytes);
    return *out ? SUCCESS : OUT_OF_MEMORY;
}
DRIVER cuMemFreeHost(void *at) {
    CALL(Needs::Context);
    settle();
    return memory.free(Kind::Host, at) ? lost : wrong(INVALID_VALUE, "cuMemFreeHost of what is no memory");
}
DRIVER cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags) {
    CALL(Needs::Context);
    if (!at || !bytes || !(flags & 1)) return wrong(INVALID_VALUE, "cuMemHostRegister of %zu bytes, not for all contexts", bytes);
    return memory.enter(at, bytes) ? SUCCESS : ALREADY_REGISTERED;
}
DRIVER cuMemHostUnregister(void *at) {
    CALL(Needs::Context);
    settle();
    return memory.free(Kind::Registered, at) ? lost : wrong(NOT_REGISTERED, "cuMemHostUnregister of what is not registered");
}

// ── Copies

DRIVER cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    CALL(Needs::Context);
    if (int code = check_device("cuMemcpyDtoHAsync", from, bytes)) return code;
    if (number("DRIVER_DELAY", 0)) spoil(address(to), bytes);
    return copy(stream, address(to), from, bytes);
}
DRIVER cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    CALL(Needs::Context);
    if (int code = check_device("cuMemcpyHtoDAsync", to, bytes)) return code;
    const auto source = sources.emplace(address(from), bytes);
    const int code = ask(stream, [=] {
        memmove(reinterpret_cast<void *>(to), from, bytes);
        sources.erase(source);
    });
    if (code) sources.erase(source);
    return code;
}
DRIVER cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    CALL(Needs::Context);
    if (int code = check_device("cuMemcpyDtoDAsync", to, bytes)) return code;
    if (int code = check_device("cuMemcpyDtoDAsync", from, bytes)) return code;
    return copy(stream, to, from, bytes);
}
DRIVER cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    CALL(Needs::Context);
    if (int code = check_device("cuMemcpyDtoH", from, bytes)) return code;
    const int code = copy(nullptr, address(to), from, bytes);
    default_stream.finish();
    return code ? code : lost;
}
DRIVER cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    CALL(Needs::Context);
    if (int code = check_device("cuMemcpyHtoD", to, bytes)) return code;
    const int code = copy(nullptr, to, address(from), bytes);
    default_stream.finish();
    return code ? code : lost;
}

// ── Streams and events

DRIVER cuStreamCreate(void **out, unsigned) {
    CALL(Needs::Context);
    auto stream = std::make_shared<Stream>();
    *out = stream.get();
    streams.insert(stream);
    return SUCCESS;
}
DRIVER cuStreamDestroy_v2(void *handle) {
    CALL(Needs::Context);
    auto stream = stream_of(handle);
    if (!handle || !stream) return wrong(INVALID_HANDLE, "cuStreamDestroy of no stream");
    // What is under way on it goes on.
    stream->finish();
    streams.erase(stream);
    return SUCCESS;
}
DRIVER cuStreamSynchronize(void *handle) {
    CALL(Needs::Context);
    auto stream = stream_of(handle);
    if (!stream) return wrong(INVALID_HANDLE, "cuStreamSynchronize of no stream");
    stream->finish();
    return lost;
}
DRIVER cuStreamWaitEvent(void *handle, void *event, unsigned) {
    CALL(Needs::Context);
    auto stream = stream_of(handle);
    Event *after = event_of(event);
    if (!stream || !after) return wrong(INVALID_HANDLE, "cuStreamWaitEvent of no stream, or no event");
    // As the event is now, whatever becomes of it.
    stream->ask([copy = *after]() mutable { copy.finish(); });
    return SUCCESS;
}
DRIVER cuEventCreate(void **out, unsigned flags) {
    CALL(Needs::Context);
    // Nobody asks for the time.
    if (flags != 3 && flags != 2) return wrong(INVALID_VALUE, "cuEventCreate with flags %u", flags);
    *out = new Event;
    events.insert(*out);
    return SUCCESS;
}
DRIVER cuEventRecord(void *handle, void *to) {
    CALL(Needs::Context);
    auto stream = stream_of(to);
    Event *event = event_of(handle);
    if (!stream || !event) return wrong(INVALID_HANDLE, "cuEventRecord of no stream, or no event");
    *event = Event(stream);
    return SUCCESS;
}
DRIVER cuEventQuery(void *handle) {
    CALL(Needs::Context);
    Event *event = event_of(handle);
    if (!event) return wrong(INVALID_HANDLE, "cuEventQuery of no event");
    if (event->is_over()) return lost;
    if (++event->asked < number("DRIVER_DELAY", 0)) return NOT_READY;
    event->finish();
    return lost;
}
DRIVER cuEventSynchronize(void *handle) {
    CALL(Needs::Context);
    Event *event = event_of(handle);
    if (!event) return wrong(INVALID_HANDLE, "cuEventSynchronize of no event");
    event->finish();
    return lost;
}
DRIVER cuEventDestroy_v2(void *handle) {
    CALL(Needs::Context);
    Event *event = event_of(handle);
    if (!event) return wrong(INVALID_HANDLE, "cuEventDestroy of no event");
    events.erase(handle);
    delete event;
    return SUCCESS;
}

// ── Kernels

DRIVER cuModuleLoadData(void **out, const void *image) {
    CALL(Needs::Context);
    Ptx ptx(static_cast<const char *>(image));
    if (!ptx.version) return INVALID_PTX;
    if (ptx.version > PTX_VERSION) return UNSUPPORTED_PTX_VERSION;
    for (const auto &[name, entry] : ptx.kernels)
        if (entry.shared > SHARED_MEMORY) return wrong(INVALID_PTX, "kernel %s: %u bytes of shared memory", name.c_str(), entry.shared);
    *out = new Module{std::move(ptx), {}};
    modules.insert(*out);
    return SUCCESS;
}
DRIVER cuModuleUnload(void *handle) {
    CALL(Needs::Context);
    if (!modules.erase(handle)) return wrong(INVALID_HANDLE, "cuModuleUnload of no module");
    settle();
    auto *module = static_cast<Module *>(handle);
    for (const auto &function : module->functions) functions.erase(function.get());
    delete module;
    return lost;
}
DRIVER cuModuleGetFunction(void **out, void *handle, const char *name) {
    CALL(Needs::Context);
    if (!modules.count(handle)) return wrong(INVALID_HANDLE, "cuModuleGetFunction of no module");
    auto *module = static_cast<Module *>(handle);
    auto found = module->ptx.kernels.find(name);
    if (found == module->ptx.kernels.end()) return NOT_FOUND;
    const Kernel *kernel = Kernel::find(name);
    if (!kernel) return wrong(NOT_FOUND, "kernel %s: not in this library; build it again", name);
    if (kernel->arguments != found->second.arguments)
        return wrong(NOT_FOUND, "kernel %s: %u arguments here, and %u in its PTX", name, kernel->arguments, found->second.arguments);
    auto function = std::make_unique<Function>(Function{kernel, found->second, name});
    *out = function.get();
    functions.insert(*out);
    module->functions.insert(std::move(function));
    return SUCCESS;
}
DRIVER cuLaunchKernel(void *handle, unsigned blocks, unsigned blocks_y, unsigned blocks_z, unsigned threads, unsigned threads_y,
                      unsigned threads_z, unsigned shared, void *stream, void **arguments, void **extra) {
    CALL(Needs::Context);
    if (!functions.count(handle)) return wrong(INVALID_HANDLE, "cuLaunchKernel of no kernel");
    const auto *function = static_cast<Function *>(handle);
    const char *name = function->name.c_str();
    if (blocks_y != 1 || blocks_z != 1 || threads_y != 1 || threads_z != 1 || extra || shared)
        return wrong(NOT_SUPPORTED, "kernel %s: launched in a way that the stand-in does not know", name);
    if (!blocks || blocks > INT32_MAX || !threads || threads > 1024)
        return wrong(INVALID_VALUE, "kernel %s: %u blocks of %u threads", name, blocks, threads);
    if (threads > function->entry.threads) return wrong(INVALID_VALUE, "kernel %s: %u threads", name, threads);
    return ask(stream, [launch = function->kernel->bind(arguments), name = function->name, blocks, threads] {
        run_kernel(launch, name, blocks, threads);
    });
}

// ── What MPI says of itself

DRIVER MPIX_Query_cuda_support(void) {
    return number("DRIVER_MPI", 0);
}
