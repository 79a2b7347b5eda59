// Kernels that say what the threads of a block see of each other, and some that are wrong.

// Of each thread of a block: what lanes above, below and across have, which of them have an odd number, and the sum of the block by way
// of shared memory. The last of the threads end early.
extern "C" __global__ void together(const unsigned *numbers, unsigned threads, unsigned *seen, unsigned *total) {
    __shared__ unsigned sums[32];
    const unsigned thread = threadIdx.x, lane = thread % 32;
    if (thread >= threads) return;
    const unsigned number = numbers[blockIdx.x * threads + thread];
    unsigned *mine = seen + (blockIdx.x * threads + thread) * 5;
    mine[0] = __shfl_down_sync(~0u, number, 3);
    mine[1] = __shfl_up_sync(~0u, number, 2, 8);
    mine[2] = __shfl_xor_sync(~0u, number, 1, 4);
    mine[3] = __ballot_sync(~0u, number % 2);
    unsigned sum = number;
    for (unsigned step = 16; step; step /= 2) {
        const unsigned other = __shfl_down_sync(~0u, sum, step);
        // Beyond the last thread there is nothing to add.
        if (lane + step < 32 && thread + step < threads) sum += other;
    }
    if (lane == 0) sums[thread / 32] = sum;
    __syncthreads();
    unsigned all = 0;
    for (unsigned warp = 0; warp <= (threads - 1) / 32; warp++) all += sums[warp];
    mine[4] = all;
    if (__syncthreads_count(thread % 3 == 0) == (int)((threads + 2) / 3) && thread == 0) atomicAdd(total, all);
}

extern "C" __global__ void writes_beyond(unsigned char *bytes, unsigned count) { bytes[count] = 1; }

extern "C" __global__ void reads_far_beyond(unsigned char *bytes, unsigned count) { bytes[0] = bytes[count + (1 << 20)]; }

extern "C" __global__ void reads_an_odd_word(unsigned char *bytes, unsigned) { bytes[0] = ((uint4 *)(bytes + 8))->x; }

extern "C" __global__ void waits_for_ever(unsigned char *, unsigned) {
    if (threadIdx.x % 2) __syncthreads();
    else __shfl_sync(~0u, 1, 0);
}

extern "C" __global__ void overflows_its_array(unsigned char *bytes, unsigned count) {
    __shared__ unsigned few[4];
    few[count % 8] = 1;
    bytes[0] = few[0];
}
