// A library with those functions of the CUDA driver that this workspace calls, for machines without one. The device's memory is the
// host's. What programs do wrong is said on standard error, and the call fails. The environment says what is wrong with the driver:
//
//   DRIVER_VERSION  the version, 12020 if it is not set
//   DRIVER_DEVICES  how many devices there are, 1 if it is not set
//   DRIVER_FAILS    NAME=CODE: that function does nothing and returns that code; NAME=CODE@N: only from its N-th call on. NAME,NAME=CODE:
//                   so do both
//   DRIVER_DELAY    what is asked for on a stream is not done at once, but when a thread waits for an event behind it, or has asked
//                   for that so many times. What a copy is to write on the host holds nonsense until then
//   DRIVER_POISON   1: with DRIVER_DELAY, bytes of the host that were written while a copy to or from them was under way end the
//                   program: their owner has got them back early. (Memory that is freed early ends it in any case.)
//   DRIVER_STRAY_ERRORS  a code: cuCtxGetCurrent says it to a thread that has asked for something, before each time that it asks
//                   whether that is over: the error of something else, as the driver's functions may
//   DRIVER_MPI      1: MPI knows devices, for programs that have loaded this library before all others (LD_PRELOAD); since the
//                   device's memory is the host's, each does
//
// Here is what its functions share.
#pragma once
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "memory.h"
#include "pending.h"
#include "stream.h"

namespace stand_in {

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

inline std::mutex mutex;
inline Memory memory;
// Never destroyed: a thread may run longer than the program's last line.
inline Pending &pending = *new Pending;
// Of handles that are alive.
inline std::set<std::shared_ptr<Stream>> streams;
inline std::set<void *> events;
inline Stream default_stream;
// Of each device, and how many times it was retained and not released.
constexpr int MOST_DEVICES = 16;
struct Context {
    int retained = 0;
};
inline Context contexts[MOST_DEVICES];
inline thread_local Context *current;
// Whether this thread is told an error of something else.
inline thread_local bool stray;
// What ended the context, and is said ever since.
inline int lost;

inline int number(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

// Says what a program does wrong.
__attribute__((format(printf, 2, 3))) inline int wrong(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("stand-in driver: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return code;
}

// What a program does that would spoil memory of others.
[[noreturn]] inline void fatal(const std::string &what) {
    fprintf(stderr, "stand-in driver: %s\n", what.c_str());
    abort();
}

inline int planned(const char *function) {
    const char *plan = getenv("DRIVER_FAILS"), *codes = plan ? strrchr(plan, '=') : nullptr;
    if (!codes) return 0;
    const std::string names = "," + std::string(plan, codes) + ",";
    if (names.find("," + std::string(function) + ",") == std::string::npos) return 0;
    static std::atomic<int> calls{0};
    int code = 0, from = 0;
    sscanf(codes + 1, "%d@%d", &code, &from);
    return ++calls >= from ? code : 0;
}

enum class Needs { Nothing, Context };

inline int begin(const char *function, Needs needs) {
    if (int code = planned(function)) return code;
    if (needs == Needs::Nothing) return SUCCESS;
    if (!current) return wrong(INVALID_CONTEXT, "%s: no context is current on this thread", function);
    return lost;
}

inline std::shared_ptr<Stream> stream_of(void *handle) {
    // The default stream, which nobody owns, also by its handles CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
    if (reinterpret_cast<uintptr_t>(handle) <= 2) return std::shared_ptr<Stream>(std::shared_ptr<Stream>(), &default_stream);
    for (const auto &stream : streams)
        if (stream.get() == handle) return stream;
    return nullptr;
}

inline Event *event_of(void *handle) { return events.count(handle) ? static_cast<Event *>(handle) : nullptr; }

// Does all that was asked for.
inline void settle() {
    default_stream.finish();
    for (const auto &stream : streams) stream->finish();
}

inline Use on_host(const void *at, size_t bytes, bool writes) { return {reinterpret_cast<uintptr_t>(at), bytes, writes, true}; }
inline Use on_device(uint64_t at, size_t bytes, bool writes) { return {at, bytes, writes, false}; }

// Has a stream do something that uses these bytes, now or later.
inline int ask(const char *call, void *handle, std::vector<Use> uses, std::function<void()> work) {
    auto stream = stream_of(handle);
    if (!stream) return wrong(INVALID_HANDLE, "%s: no such stream", call);
    const bool late = number("DRIVER_DELAY", 0), checked = number("DRIVER_POISON", 0);
    const auto ticket = pending.add(call, std::move(uses), late);
    // Of a context that was lost meanwhile nothing is done.
    stream->ask([=, work = std::move(work)] {
        const std::string why = pending.end(ticket);
        if (!why.empty() && checked) fatal(why);
        if (!lost) work();
    });
    stray = true;
    if (!late) stream->finish();
    return SUCCESS;
}

}  // namespace stand_in

#define CALL(needs)                           \
    std::lock_guard<std::mutex> lock(mutex);  \
    if (int code = begin(__func__, needs)) return code
#define DRIVER extern "C" __attribute__((visibility("default"))) int
