// The threads of a block take turns on stacks of their own. One that neither waits nor ends goes on, and the next begins on its
// stack when it ends, so that a block in which nobody waits costs one switch.
#include "block.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

dim3 threadIdx = {0, 0, 0}, blockIdx = {0, 0, 0}, blockDim, gridDim;

namespace stand_in {
namespace {

constexpr size_t STACK = 64 << 10;
constexpr unsigned WARP = 32;
// For what nobody may read.
constexpr int NONSENSE = 0xA5;

struct Fibre {
    ucontext_t context;
    jmp_buf here;
    bool begun = false;
    unsigned thread = 0;
    char *stack;

    Fibre();
    ~Fibre();
    Fibre(const Fibre &) = delete;
};

// Who waits for whom with the same mask.
struct Meeting {
    unsigned arrived = 0;
    unsigned number = 0;
    // Of this meeting and of the one before, which some may be reading yet.
    uint64_t values[2][WARP];
    unsigned were[2] = {0, 0};
    std::vector<Fibre *> waiting;
};

struct Block {
    const std::function<void()> *kernel;
    unsigned threads, begun, ended;
    std::vector<char> has_ended;
    std::deque<Fibre *> ready;
    std::vector<Fibre *> idle;
    // At the barrier.
    std::vector<Fibre *> waiting;
    unsigned number, sum, sums[2];
    // By warp and mask.
    std::unordered_map<uint64_t, Meeting> meetings;
};

Block block;
Fibre *running;
std::vector<std::unique_ptr<Fibre>> fibres;
jmp_buf scheduler;
sigjmp_buf failed;
std::string why;
// Whether this thread of the host runs a kernel.
thread_local volatile bool inside;

void release_barrier() {
    block.sums[block.number % 2] = block.sum;
    block.number++;
    block.sum = 0;
    block.ready.insert(block.ready.end(), block.waiting.begin(), block.waiting.end());
    block.waiting.clear();
}

// The lanes of a warp that have not ended.
unsigned alive(unsigned warp) {
    unsigned mask = 0;
    for (unsigned lane = 0; lane < WARP && warp * WARP + lane < block.threads; lane++)
        if (!block.has_ended[warp * WARP + lane]) mask |= 1u << lane;
    return mask;
}

void release_meeting(Meeting &meeting) {
    meeting.were[meeting.number % 2] = meeting.arrived;
    meeting.number++;
    meeting.arrived = 0;
    block.ready.insert(block.ready.end(), meeting.waiting.begin(), meeting.waiting.end());
    meeting.waiting.clear();
}

void end_thread(unsigned thread) {
    block.has_ended[thread] = 1;
    block.ended++;
    if (!block.waiting.empty() && block.waiting.size() == block.threads - block.ended) release_barrier();
    if (block.meetings.empty()) return;
    const unsigned warp = thread / WARP, living = alive(warp);
    for (auto &[key, meeting] : block.meetings)
        if (key >> 32 == warp && meeting.arrived && meeting.arrived == (unsigned(key) & living)) release_meeting(meeting);
}

void go(Fibre *fibre) {
    running = fibre;
    threadIdx.x = fibre->thread;
    if (_setjmp(scheduler)) return;
    if (fibre->begun) _longjmp(fibre->here, 1);
    fibre->begun = true;
    setcontext(&fibre->context);
}

void yield() {
    if (!_setjmp(running->here)) _longjmp(scheduler, 1);
}

// What every fibre does, for ever.
void work() {
    Fibre *self = running;
    for (;;) {
        while (block.begun < block.threads) {
            self->thread = threadIdx.x = block.begun++;
            (*block.kernel)();
            end_thread(self->thread);
        }
        block.idle.push_back(self);
        yield();
    }
}

Fibre::Fibre() {
    // Whoever needs more meets the page below.
    const size_t page = sysconf(_SC_PAGESIZE);
    void *at = mmap(nullptr, STACK + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("no memory for the stack of a thread");
    stack = static_cast<char *>(at);
    mprotect(stack, page, PROT_NONE);
    getcontext(&context);
    context.uc_stack.ss_sp = stack + page;
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, work, 0);
}

Fibre::~Fibre() { munmap(stack, STACK + sysconf(_SC_PAGESIZE)); }

Fibre *idle_fibre() {
    if (block.idle.empty()) {
        fibres.push_back(std::make_unique<Fibre>());
        return fibres.back().get();
    }
    Fibre *fibre = block.idle.back();
    block.idle.pop_back();
    return fibre;
}

void run_block(unsigned number) {
    blockIdx.x = number;
    block.begun = block.ended = block.number = block.sum = 0;
    block.has_ended.assign(block.threads, 0);
    block.meetings.clear();
    while (block.ended < block.threads) {
        if (block.begun < block.threads) {
            go(idle_fibre());
        } else if (!block.ready.empty()) {
            Fibre *fibre = block.ready.front();
            block.ready.pop_front();
            go(fibre);
        } else {
            fail(std::to_string(block.threads - block.ended) + " threads wait for each other for ever");
        }
    }
}

const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE};
struct sigaction before[sizeof SIGNALS / sizeof *SIGNALS];

void caught(int number, siginfo_t *info, void *context) {
    if (inside) {
        const bool memory = number == SIGSEGV || number == SIGBUS;
        why = memory ? "memory that is not there" : "a word that is not aligned, an index beyond its array, or a division by 0";
        siglongjmp(failed, 1);
    }
    // Not ours.
    for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++) {
        if (SIGNALS[i] != number) continue;
        if (before[i].sa_flags & SA_SIGINFO) return before[i].sa_sigaction(number, info, context);
        sigaction(number, &before[i], nullptr);
    }
}

void catch_signals() {
    struct sigaction action = {};
    action.sa_sigaction = caught;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++) sigaction(SIGNALS[i], &action, &before[i]);
}

void release_signals() {
    for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++) sigaction(SIGNALS[i], &before[i], nullptr);
}

}  // namespace

void fail(const std::string &reason) {
    why = reason;
    siglongjmp(failed, 1);
}

unsigned barrier(unsigned value) {
    const unsigned number = block.number;
    block.sum += value;
    if (block.waiting.size() + 1 == block.threads - block.ended) {
        release_barrier();
    } else {
        block.waiting.push_back(running);
        yield();
    }
    return block.sums[number % 2];
}

Lanes exchange(unsigned mask, uint64_t value) {
    const unsigned thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    if (!(mask >> lane & 1)) fail("a lane that is not in the mask");
    Meeting &meeting = block.meetings[uint64_t(warp) << 32 | mask];
    const unsigned number = meeting.number % 2;
    if (!meeting.arrived) memset(meeting.values[number], NONSENSE, sizeof meeting.values[number]);
    meeting.values[number][lane] = value;
    meeting.arrived |= 1u << lane;
    if (meeting.arrived == (mask & alive(warp))) {
        release_meeting(meeting);
    } else {
        meeting.waiting.push_back(running);
        yield();
    }
    return {meeting.values[number], meeting.were[number]};
}

std::string run(const std::function<void()> &kernel, unsigned blocks, unsigned threads) {
    why.clear();
    gridDim.x = blocks;
    blockDim.x = threads;
    block.kernel = &kernel;
    block.threads = threads;
    catch_signals();
    inside = true;
    if (!sigsetjmp(failed, 1)) {
        for (unsigned number = 0; number < blocks; number++) run_block(number);
    } else {
        why += ", in block " + std::to_string(blockIdx.x) + ", thread " + std::to_string(threadIdx.x);
        // Those that wait never go on.
        block.ready.clear();
        block.waiting.clear();
        block.idle.clear();
        fibres.clear();
    }
    inside = false;
    release_signals();
    return why;
}

}  // namespace stand_in
