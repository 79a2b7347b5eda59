// What CUDA C has more than C++, as far as kernels of this workspace use it, for running them on the host. One thread of a block
// runs at a time; others have their turn where it waits for them. So memory that they share needs no more than that, and atomic
// operations are plain ones.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "block.h"
#include "kernels.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __constant__ static
// One block runs at a time.
#define __shared__ static
#define __restrict__ __restrict

constexpr int warpSize = 32;

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    return T(b) < T(a) ? T(b) : T(a);
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    return T(a) < T(b) ? T(b) : T(a);
}

#define STAND_IN_VECTORS(type, name, bytes)                                                   \
    struct alignas(2 * bytes) name##2 { type x, y; };                                         \
    struct name##3 { type x, y, z; };                                                         \
    struct alignas(4 * bytes > 16 ? 16 : 4 * bytes) name##4 { type x, y, z, w; };             \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }                          \
    inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }               \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
STAND_IN_VECTORS(signed char, char, 1)
STAND_IN_VECTORS(unsigned char, uchar, 1)
STAND_IN_VECTORS(short, short, 2)
STAND_IN_VECTORS(unsigned short, ushort, 2)
STAND_IN_VECTORS(int, int, 4)
STAND_IN_VECTORS(unsigned, uint, 4)
STAND_IN_VECTORS(long long, longlong, 8)
STAND_IN_VECTORS(unsigned long long, ulonglong, 8)
STAND_IN_VECTORS(float, float, 4)
STAND_IN_VECTORS(double, double, 8)
#undef STAND_IN_VECTORS

// ── Waiting for others

inline void __syncthreads() { stand_in::barrier(0); }
inline int __syncthreads_count(int is) { return stand_in::barrier(is != 0); }
inline int __syncthreads_or(int is) { return stand_in::barrier(is != 0) > 0; }
inline int __syncthreads_and(int is) { return stand_in::barrier(is == 0) == 0; }
inline void __syncwarp(unsigned mask = ~0u) { stand_in::exchange(mask, 0); }
inline void __threadfence() {}
inline void __threadfence_block() {}

namespace stand_in {

inline int lane() { return threadIdx.x % warpSize; }

// What the lane `from` has brought.
template <typename T>
T lane_value(unsigned mask, T value, int from) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "as in CUDA");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    const uint64_t other = exchange(mask, bits).values[from];
    memcpy(&value, &other, sizeof value);
    return value;
}

// The lanes for which something is so.
inline unsigned vote(unsigned mask, int is) {
    const Lanes lanes = exchange(mask, is != 0);
    unsigned all = 0;
    for (int at = 0; at < warpSize; at++)
        if (lanes.arrived >> at & 1 && lanes.values[at]) all |= 1u << at;
    return all;
}

}  // namespace stand_in

template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = warpSize) {
    return stand_in::lane_value(mask, value, (stand_in::lane() & -width) + (from & (width - 1)));
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = warpSize) {
    const int lane = stand_in::lane(), inside = lane & (width - 1);
    return stand_in::lane_value(mask, value, inside + by < unsigned(width) ? lane + int(by) : lane);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = warpSize) {
    const int lane = stand_in::lane(), inside = lane & (width - 1);
    return stand_in::lane_value(mask, value, unsigned(inside) >= by ? lane - int(by) : lane);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = warpSize) {
    const int lane = stand_in::lane(), other = lane ^ with;
    return stand_in::lane_value(mask, value, other < (lane & -width) + width ? other : lane);
}
inline unsigned __ballot_sync(unsigned mask, int is) { return stand_in::vote(mask, is); }
inline int __any_sync(unsigned mask, int is) { return stand_in::vote(mask, is) != 0; }
inline int __all_sync(unsigned mask, int is) { return stand_in::vote(mask, !is) == 0; }

// ── Atomic operations

namespace stand_in {
template <typename T>
struct Is {
    using Type = T;
};
}  // namespace stand_in
// Is converted to the type of the memory, as in CUDA.
template <typename T>
using Same = typename stand_in::Is<T>::Type;

template <typename T>
T atomicExch(T *at, Same<T> value) {
    return std::exchange(*at, value);
}
template <typename T>
T atomicAdd(T *at, Same<T> value) {
    return std::exchange(*at, *at + value);
}
template <typename T>
T atomicSub(T *at, Same<T> value) {
    return std::exchange(*at, *at - value);
}
template <typename T>
T atomicMin(T *at, Same<T> value) {
    return std::exchange(*at, min(*at, value));
}
template <typename T>
T atomicMax(T *at, Same<T> value) {
    return std::exchange(*at, max(*at, value));
}
template <typename T>
T atomicOr(T *at, Same<T> value) {
    return std::exchange(*at, *at | value);
}
template <typename T>
T atomicAnd(T *at, Same<T> value) {
    return std::exchange(*at, *at & value);
}
template <typename T>
T atomicCAS(T *at, Same<T> expected, Same<T> value) {
    return std::exchange(*at, *at == expected ? value : *at);
}

// ── Numbers

template <typename T>
T __ldg(const T *at) {
    return *at;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline unsigned __usad(unsigned a, unsigned b, unsigned sum) { return sum + (a > b ? a - b : b - a); }
inline unsigned __sad(int a, int b, unsigned sum) { return sum + (a > b ? unsigned(a) - unsigned(b) : unsigned(b) - unsigned(a)); }
// Of the bytes of two words: the differences, the sum of them, and the sum of products.
inline unsigned __vabsdiffu4(unsigned a, unsigned b) {
    unsigned all = 0;
    for (int at = 0; at < 32; at += 8) all |= __usad(a >> at & 255, b >> at & 255, 0) << at;
    return all;
}
inline unsigned __vsadu4(unsigned a, unsigned b) {
    unsigned sum = 0;
    for (int at = 0; at < 32; at += 8) sum = __usad(a >> at & 255, b >> at & 255, sum);
    return sum;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
    for (int at = 0; at < 32; at += 8) sum += (a >> at & 255) * (b >> at & 255);
    return sum;
}
inline int __dp4a(int a, int b, int sum) {
    for (int at = 0; at < 32; at += 8) sum += int(int8_t(a >> at)) * int(int8_t(b >> at));
    return sum;
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
    const uint64_t all = uint64_t(high) << 32 | low;
    unsigned word = 0;
    for (int at = 0; at < 4; at++) word |= unsigned(all >> (8 * (which >> (4 * at) & 7)) & 255) << (8 * at);
    return word;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return unsigned((uint64_t(high) << 32 | low) >> (by & 31));
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline int __float2int_rn(float a) { return int(std::nearbyint(a)); }
inline int __float2int_rz(float a) { return int(a); }
inline unsigned __float_as_uint(float a) {
    unsigned bits;
    memcpy(&bits, &a, sizeof bits);
    return bits;
}
inline float __uint_as_float(unsigned a) {
    float value;
    memcpy(&value, &a, sizeof value);
    return value;
}

// Makes a kernel known to the driver.
#define KERNEL(name) const stand_in::Kernel stand_in_##name(#name, name);
