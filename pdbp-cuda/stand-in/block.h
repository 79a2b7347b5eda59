// Runs kernels on the host, one block after the other.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

// Of the thread that runs.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace stand_in {

// Runs a kernel of so many blocks. Says what went wrong, or nothing. One thread of the host at a time may call it.
std::string run(const std::function<void()> &kernel, unsigned blocks, unsigned threads);

// Waits for the other threads of the block that have not ended; the sum of what each brings.
unsigned barrier(unsigned value);

// What the lanes of a mask have brought. Whose lane brings nothing, is nonsense.
struct Lanes {
    const uint64_t *values;
    unsigned arrived;
};

// Waits for those of the mask that have not ended.
Lanes exchange(unsigned mask, uint64_t value);

// Ends the kernel with an error.
[[noreturn]] void fail(const std::string &why);

}  // namespace stand_in
