// The functions for streams, events and kernels, and the one of MPI.
#include "block.h"
#include "driver.h"
#include "kernels.h"
#include "ptx.h"

using namespace stand_in;

namespace {

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

std::set<void *> functions, modules;

void run_kernel(const Launch &launch, const std::string &name, unsigned blocks, unsigned threads) {
    std::string why;
    for (uint64_t at : launch.addresses)
        if (at && !memory.around(at).second) why = "an argument that is no address of the device";
    if (why.empty()) why = run(launch.run, blocks, threads);
    if (why.empty()) why = memory.damage();
    if (!why.empty()) lost = wrong(ILLEGAL_ADDRESS, "kernel %s: %s", name.c_str(), why.c_str());
}

}  // namespace

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
    stray = false;
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
    stray = !event->is_over() && ++event->asked < number("DRIVER_DELAY", 0);
    if (stray) return NOT_READY;
    event->finish();
    return lost;
}
DRIVER cuEventSynchronize(void *handle) {
    CALL(Needs::Context);
    Event *event = event_of(handle);
    if (!event) return wrong(INVALID_HANDLE, "cuEventSynchronize of no event");
    event->finish();
    stray = false;
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
    const Launch launch = function->kernel->bind(arguments);
    std::vector<Use> uses;
    for (uint64_t at : launch.addresses) {
        const auto [begin, bytes] = memory.around(at);
        if (bytes) uses.push_back(on_device(begin, bytes, true));
    }
    return ask(("kernel " + function->name).c_str(), stream, uses,
               [launch, name = function->name, blocks, threads] { run_kernel(launch, name, blocks, threads); });
}

// ── What MPI says of itself

DRIVER MPIX_Query_cuda_support(void) {
    return number("DRIVER_MPI", 0);
}
