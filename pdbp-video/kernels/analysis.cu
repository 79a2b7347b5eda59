/* Analysis of a batch of YUV 4:2:0 pictures of any sizes: restoration to RGB, and the sums behind blur, blockiness and smoothness.
   The Rust modules measure::{restore, blur, jpeg} say what is computed; everything here is an exact integer, so that the sums, and
   the scores made from them by the same code, are those of the processor, bit by bit.

     analyse        restores and sums; the kernel that is used
     measure        only sums
     analyse_plain  both again, one sample at a time, as the definitions say: what the others are tested against

   Arguments of all: input (planes of the pictures: Y, U, V without padding, each picture on a border of 16 bytes), table (one
   Picture each, in the order of their items), how many pictures, how many items, sums (10 numbers per picture, 0 at the start:
   horizontal and vertical {9·Σ D_F, 9·Σ V, Σ |d|, Σ |d| across borders, sign changes}), output (planes R, G, B of the pictures,
   each picture on a border of 16 bytes). Blocks have 128 threads.

   How the work is divided. An item is a strip of 16 columns in a band of rows; a thread walks down one item, two rows at a time.
   Items of all pictures are numbered through, so that a block has 128 of them whatever the sizes are.

     column:  x-8 … x-1 │ x … x+15 │ x+16 …      the thread's own 16 bytes, and what horizontal neighbours need: 8 and 4 bytes,
     row y:     left    │   own    │ right       which the threads beside it read at the same time, from the same lines

   The vertical measures of row c = y - 4 need rows c + 4, c, c - 1 and c - 5: own bytes of ten rows stay in shared memory, where no
   other thread looks at them, so that there is no barrier. The rows of the next step are on their way while a step is computed.
   Beyond the picture the nearest sample is repeated: then differences and sign changes there are 0 by themselves, and only blur,
   which counts samples whose filter lies inside, has to be masked. Sums of a warp are added by shuffles and then, one lane per
   picture, to the picture's by atomics.

   Four samples to a word wherever bytes will do (vabsdiff4, dp4a). Two tricks carry the rest:
   * max(0, W - 9·D) for two samples at once in half precision: integers below 2^11 in 16 bits are, read as halves, multiples of
     2^-24, of which a fused multiply-add gives the exact result, and saturation cuts what is negative (`excess`).
   * A sample of RGB is floor((149·Y + T) / 128), T from chroma, cut to 0…255: two fused multiply-adds in single precision, the first
     exact and saturating at both ends, the second rounding down to the integer in its low bits (`level`).

   Cost, counted in the machine code for compute capability 9.0 (the loop of `walk`, which does 32 samples, every instruction of it):

     kernel     instructions   of these for the integer units   registers   warps of a multiprocessor   samples a clock, at most
     analyse    31.1 a sample  15.3                             128         16                          4.1
     measure    17.7           10.7                             80          24                          6.0

   A multiprocessor begins 128 a clock, and 64 of those for the integer units. On 132 of them at 1.75 GHz that is 0.95·10^12 samples a
   second, or 1.4 TB of frames, and, since a restored sample is 1.5 bytes read and 3 written, 4.3 TB/s of memory; `measure` reads a byte a
   sample, 1.4 TB/s. So `analyse` is made to be bound by memory. Nothing of this has been measured on a device. */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct Picture {
    u64 input;  /* where its planes begin, in bytes */
    u64 output; /* where the planes of RGB begin, in bytes */
    u32 first;  /* number of its first item */
    u16 width, height;
    u32 rows; /* rows of a band, an even number */
    u32 unused;
};

#define ARGUMENTS const u8 *input, const Picture *table, u32 pictures, u32 items, u64 *sums, u8 *output
#define UNROLLED _Pragma("unroll")
#define THREADS 128
#define STRIP 16
#define REACH 4
#define SUMS 10
#define KEPT 10 /* rows, in shared memory */
#define LANES 32
#define ALL_LANES 0xffffffffu
#define NOBODY 0xffffffffu
#define FLAGS 0x80808080u
#define ONES 0x01010101u
#define EVEN 0x00ff00ffu

/* The sum of the products of bytes, and of two halves with two bytes. */
static __device__ __forceinline__ u32 dot4(u32 a, u32 b, u32 sum) {
#ifdef __CUDA_ARCH__
    asm("dp4a.u32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
#else
    return __dp4a(a, b, sum);
#endif
}

static __device__ __forceinline__ u32 sum_of_halves(u32 halves, u32 sum) {
#ifdef __CUDA_ARCH__
    asm("dp2a.lo.u32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(halves), "r"(0x0101u));
    return sum;
#else
    return sum + (halves & 0xffff) + (halves >> 16);
#endif
}

/* max(0, w - 9·d) in both halves of a word; w and d are at most 255. */
static __device__ __forceinline__ u32 excess(u32 w, u32 d) {
#ifdef __CUDA_ARCH__
    u32 result;
    asm("fma.rn.sat.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(d), "r"(0xc880c880u /* -9, -9 */), "r"(w));
    return result;
#else
    u32 low = (w & 0xffff) > 9 * (d & 0xffff) ? (w & 0xffff) - 9 * (d & 0xffff) : 0;
    u32 high = (w >> 16) > 9 * (d >> 16) ? (w >> 16) - 9 * (d >> 16) : 0;
    return low | high << 16;
#endif
}

/* floor(x / 128) cut to 0…255, in the lowest byte, where x + ½ = 2^15·(y·factor + term) is computed exactly. */
static __device__ __forceinline__ u32 level(float y, float factor, float term) {
#ifdef __CUDA_ARCH__
    float share;
    asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(share) : "f"(y), "f"(factor), "f"(term));
    /* (256 - 2^-8)·share: an x/128 + 2^-8 at or above an integer of at most 255 stays so, and 1 becomes less than 256. */
    return __float_as_uint(__fmaf_rz(share, 255.99609375f, 8388608.f));
#else
    float share = __fmaf_rn(y, factor, term);
    return (u32)(min(max(share, 0.f), 1.f) * 255.99609375);
#endif
}

/* 2^15 + byte `at` of a word. */
static __device__ __forceinline__ float byte_as_float(u32 word, u32 at) {
    return __uint_as_float(__byte_perm(word, 0x47000000u, 0x7404u | at << 4));
}

/* Sums of one item in one direction, as they are collected. */
struct Tally {
    u32 all;       /* Σ |d| */
    u32 borders;   /* Σ |d| across block borders */
    u32 crossings; /* 128 for each sign change */
    u32 within;    /* Σ |d| where the filter lies inside; within a row 255 times that */
    u32 wide;      /* Σ W there, W = |F(i+4) - F(i-5)| */
    u32 excess;    /* Σ max(0, W - 9·|d|) there */
};

/* For each byte its highest bit says whether a > b, or b > a: a carry of a + (255 - b), whose half is an average. */
static __device__ __forceinline__ void signs(u32 a, u32 b, u32 &more, u32 &less) {
    u32 half = (~(a ^ b) >> 1) & 0x7f7f7f7fu;
    more = half + (a & ~b);
    less = half + (b & ~a);
}

static __device__ __forceinline__ u32 turns(u32 more, u32 less, u32 next_more, u32 next_less, u32 sum) {
    return dot4(more & next_less & FLAGS, ONES, dot4(less & next_more & FLAGS, ONES, sum));
}

/* Adds max(0, W - 9·D) of four samples, in two halves. */
static __device__ __forceinline__ u32 add_excess(u32 wide, u32 d, u32 halves) {
    u32 even = excess(wide & EVEN, d & EVEN);
    u32 odd = excess(__byte_perm(wide, 0, 0x4341), __byte_perm(d, 0, 0x4341));
    return halves + even + odd;
}

/* One row of a strip and its neighbours to the left and right. */
struct Row {
    uint2 left;
    uint4 own;
    u32 right;
};

/* The measures within a row; `inside` has the bytes set whose filter lies inside. */
static __device__ __forceinline__ void within_row(const Row &row, const u32 inside[4], Tally &sum) {
    const u32 f[5] = {row.own.x, row.own.y, row.own.z, row.own.w, row.right};
    /* before[i]: the samples one to the left of f[i - 1]. */
    u32 before[6], more[5], less[5], halves = 0;
    before[0] = __byte_perm(row.left.x, row.left.y, 0x6543);
    before[1] = __byte_perm(row.left.y, f[0], 0x6543);
    UNROLLED for (int i = 1; i < 5; i++) before[i + 1] = __byte_perm(f[i - 1], f[i], 0x6543);
    UNROLLED for (int i = 0; i < 5; i++) signs(f[i], before[i + 1], more[i], less[i]);
    UNROLLED for (int i = 0; i < 4; i++) {
        u32 d = __vabsdiffu4(f[i], before[i + 1]);
        u32 wide = __vabsdiffu4(f[i + 1], before[i]) & inside[i];
        sum.all = dot4(d, ONES, sum.all);
        if (i % 2 == 0) sum.borders += d & 0xff;
        sum.within = dot4(d, inside[i], sum.within);
        sum.wide = dot4(wide, ONES, sum.wide);
        halves = add_excess(wide, d, halves);
        u32 next_more = __byte_perm(more[i], more[i + 1], 0x4321);
        u32 next_less = __byte_perm(less[i], less[i + 1], 0x4321);
        sum.crossings = turns(more[i], less[i], next_more, next_less, sum.crossings);
    }
    sum.excess = sum_of_halves(halves, sum.excess);
}

/* Signs of the differences between a row and the one before it. */
struct Signs {
    u32 more[4], less[4];
};

/* The measures between rows: of `here`, row `at` of a picture of `height` rows, and the rows one before, five before and four
   after it. */
static __device__ __forceinline__ void between_rows(const uint4 &after, const uint4 &here, const uint4 &before, const uint4 &far,
                                                    int at, int height, Signs &last, Tally &sum) {
    const u32 f[4] = {here.x, here.y, here.z, here.w}, b[4] = {before.x, before.y, before.z, before.w};
    u32 d[4], row = 0;
    UNROLLED for (int i = 0; i < 4; i++) {
        u32 more, less;
        d[i] = __vabsdiffu4(f[i], b[i]);
        row = dot4(d[i], ONES, row);
        signs(f[i], b[i], more, less);
        sum.crossings = turns(last.more[i], last.less[i], more, less, sum.crossings);
        last.more[i] = more;
        last.less[i] = less;
    }
    sum.all += row;
    if (at % 8 == 0) sum.borders += row;
    if (at <= REACH || at + REACH >= height) return;
    const u32 a[4] = {after.x, after.y, after.z, after.w}, p[4] = {far.x, far.y, far.z, far.w};
    u32 halves = 0;
    UNROLLED for (int i = 0; i < 4; i++) {
        u32 wide = __vabsdiffu4(a[i], p[i]);
        sum.wide = dot4(wide, ONES, sum.wide);
        halves = add_excess(wide, d[i], halves);
    }
    sum.within += row;
    sum.excess = sum_of_halves(halves, sum.excess);
}

/* What an item needs to know of its picture. Where widths are multiples of 16 (functions say WHOLE), all strips are that wide, and
   their rows on borders of 16 bytes; other pictures are read and written byte by byte. */
struct Strip {
    const u8 *luma, *u, *v;
    u8 *rgb;
    int width, height;
    int x; /* its first column */
};

static __device__ __forceinline__ int clamp(int value, int most) { return min(max(value, 0), most); }

/* Bytes at columns `x`… of a row, whose ends are repeated. */
static __device__ u32 gather(const u8 *row, int x, int width) {
    u32 word = 0;
#pragma unroll 1
    for (int i = 0; i < 4; i++) word |= (u32)row[clamp(x + i, width - 1)] << 8 * i;
    return word;
}

/* Row `y`, or the one nearest to it. */
template <bool WHOLE>
static __device__ __forceinline__ Row load(const Strip &s, int y) {
    const u8 *row = s.luma + (u32)clamp(y, s.height - 1) * (u32)s.width;
    Row to;
    if (WHOLE) {
        to.own = *(const uint4 *)(row + s.x);
        if (s.x > 0) to.left = *(const uint2 *)(row + s.x - 8);
        if (s.x + STRIP < s.width) to.right = *(const u32 *)(row + s.x + STRIP);
    } else {
        to.left = make_uint2(gather(row, s.x - 8, s.width), gather(row, s.x - 4, s.width));
        to.own = make_uint4(gather(row, s.x, s.width), gather(row, s.x + 4, s.width), gather(row, s.x + 8, s.width),
                            gather(row, s.x + 12, s.width));
        to.right = gather(row, s.x + STRIP, s.width);
    }
    return to;
}

/* Repeats the ends of a row that `load` has left out. */
static __device__ __forceinline__ void close(const Strip &s, Row &row) {
    if (s.x == 0) row.left = make_uint2(0, __byte_perm(row.own.x, 0, 0));
    if (s.x + STRIP >= s.width) row.right = __byte_perm(row.own.w, 0, 0x3333);
}

/* Bytes of columns of the picture among four from `x` on that lie in first…last. */
static __device__ __forceinline__ u32 columns(int x, int first, int last) {
    u32 mask = 0;
    for (int i = 0; i < 4; i++) mask |= x + i >= first && x + i <= last ? 0xffu << 8 * i : 0;
    return mask;
}

/* Between rows, columns beyond the picture must be the same in all. */
template <bool WHOLE>
static __device__ __forceinline__ uint4 cut(const Strip &s, uint4 own) {
    if (WHOLE) return own;
    auto at = [&](int by) { return columns(s.x + by, 0, s.width - 1); };
    return make_uint4(own.x & at(0), own.y & at(4), own.z & at(8), own.w & at(12));
}

/* The chroma of two rows of a strip: eight samples each. */
struct Chroma {
    uint2 u, v;
};

static __device__ __forceinline__ Chroma load_chroma(const Strip &s, int row) {
    u32 at = (u32)row * (u32)(s.width / 2) + (u32)(s.x / 2);
    return {*(const uint2 *)(s.u + at), *(const uint2 *)(s.v + at)};
}

/* Four samples of one colour; `left` and `right` are the terms of the two chroma samples that they share. */
static __device__ __forceinline__ u32 colour(const float y[4], float left, float right) {
    const float factor = 149 / 32768.f;
    u32 low = __byte_perm(level(y[0], factor, left), level(y[1], factor, left), 0x0040);
    u32 high = __byte_perm(level(y[2], factor, right), level(y[3], factor, right), 0x0040);
    return __byte_perm(low, high, 0x5410);
}

/* Restores rows `y` and `y` + 1, the second only if the picture has it. In units of 2^-15, and with luma and chroma as 2^15 more than
   they are: 149·Y + T, T twice what the Rust code adds to half of 149·Y, plus ½ so that rounding down has something to spare. */
static __device__ __forceinline__ void restore(const Strip &s, int y, const uint4 &first, const uint4 &second, const Chroma &chroma) {
    const float unit = 1 / 32768.f, base = (64 - 2 * 1192 + 0.5f - 149 * 32768.f) * unit;
    const u32 f[2][4] = {{first.x, first.y, first.z, first.w}, {second.x, second.y, second.z, second.w}};
    u32 out[2][3][4];
    UNROLLED for (int i = 0; i < 4; i++) {
        float red[2], green[2], blue[2];
        UNROLLED for (int k = 0; k < 2; k++) {
            float u = byte_as_float(i < 2 ? chroma.u.x : chroma.u.y, i % 2 * 2 + k) - (32768.f + 128);
            float v = byte_as_float(i < 2 ? chroma.v.x : chroma.v.y, i % 2 * 2 + k) - (32768.f + 128);
            red[k] = __fmaf_rn(v, 2 * 102 * unit, base);
            green[k] = __fmaf_rn(v, -2 * 52 * unit, __fmaf_rn(u, -2 * 25 * unit, base));
            blue[k] = __fmaf_rn(u, 2 * 129 * unit, base);
        }
        UNROLLED for (int row = 0; row < 2; row++) {
            float luma[4];
            UNROLLED for (int k = 0; k < 4; k++) luma[k] = byte_as_float(f[row][i], k);
            out[row][0][i] = colour(luma, red[0], red[1]);
            out[row][1][i] = colour(luma, green[0], green[1]);
            out[row][2][i] = colour(luma, blue[0], blue[1]);
        }
    }
    const u64 plane = (u32)s.width * (u32)s.height;
    u8 *to = s.rgb + (u32)y * (u32)s.width + s.x;
    UNROLLED for (int colour = 0; colour < 3; colour++, to += plane) {
        *(uint4 *)to = make_uint4(out[0][colour][0], out[0][colour][1], out[0][colour][2], out[0][colour][3]);
        if (y + 1 < s.height)
            *(uint4 *)(to + s.width) = make_uint4(out[1][colour][0], out[1][colour][1], out[1][colour][2], out[1][colour][3]);
    }
}

/* One sample, as the Rust code has it; chroma with its rounding constant. */
static __device__ __forceinline__ u8 restored(int luma, int chroma) {
    return (u8)clamp(((luma * 149 >> 1) - 1192 + chroma) >> 6, 255);
}

static __device__ __forceinline__ void restore_sample(const Strip &s, int x, int y) {
    const u32 at = (u32)y * (u32)s.width + (u32)x, plane = (u32)s.width * (u32)s.height;
    const u32 half = (u32)(y / 2) * (u32)((s.width + 1) / 2) + (u32)(x / 2);
    const int luma = s.luma[at], u = s.u[half] - 128, v = s.v[half] - 128;
    s.rgb[at] = restored(luma, 102 * v + 32);
    s.rgb[(u64)plane + at] = restored(luma, 32 - 25 * u - 52 * v);
    s.rgb[2 * (u64)plane + at] = restored(luma, 129 * u + 32);
}

/* The same as `restore`, of pictures of any width. */
static __device__ __forceinline__ void restore_samples(const Strip &s, int y) {
#pragma unroll 1
    for (int i = 0; i < 2 * STRIP; i++) {
        int x = s.x + i % STRIP, row = y + i / STRIP;
        if (x < s.width && row < s.height) restore_sample(s, x, row);
    }
}

/* The signs of the row before a band. */
template <bool WHOLE>
static __device__ __forceinline__ Signs signs_before(const Strip &s, int first) {
    uint4 here = cut<WHOLE>(s, load<WHOLE>(s, first - 1).own), before = cut<WHOLE>(s, load<WHOLE>(s, first - 2).own);
    const u32 f[4] = {here.x, here.y, here.z, here.w}, b[4] = {before.x, before.y, before.z, before.w};
    Signs of;
    for (int i = 0; i < 4; i++) signs(f[i], b[i], of.more[i], of.less[i]);
    return of;
}

static __device__ __forceinline__ uint4 *kept(uint4 *ring, int slot) {
    return ring + (slot < KEPT ? slot : slot - KEPT) * THREADS;
}

/* Walks down rows first…end of a strip. `ring` has room for KEPT rows, THREADS apart. */
template <bool RESTORES, bool WHOLE>
static __device__ __forceinline__ void walk(const Strip &s, int first, int end, uint4 *ring, Tally &across, Tally &down) {
    u32 inside[4];
    for (int i = 0; i < 4; i++) inside[i] = columns(s.x + 4 * i, REACH + 1, s.width - 1 - REACH);
    Signs last = signs_before<WHOLE>(s, first);
    Row row[2] = {load<WHOLE>(s, first - 6), load<WHOLE>(s, first - 5)};
    Chroma chroma = {};
    int slot = 0;
#pragma unroll 1
    for (int y = first - 6; y < end + REACH; y += 2, slot = slot < KEPT - 2 ? slot + 2 : 0) {
        if (y >= first && y < end) {
            close(s, row[0]);
            close(s, row[1]);
            within_row(row[0], inside, across);
            if (y + 1 < end) within_row(row[1], inside, across);
            if (RESTORES && WHOLE) restore(s, y, row[0].own, row[1].own, chroma);
            if (RESTORES && !WHOLE) restore_samples(s, y);
        }
        uint4 own[2] = {cut<WHOLE>(s, row[0].own), cut<WHOLE>(s, row[1].own)};
        /* What the next step needs is on its way while this one looks between rows. */
        row[0] = load<WHOLE>(s, y + 2);
        row[1] = load<WHOLE>(s, y + 3);
        if (RESTORES && WHOLE && y + 2 >= first && y + 2 < end) chroma = load_chroma(s, (y + 2) / 2);
        int at = y - REACH;
        if (at >= first) {
            uint4 before = *kept(ring, slot + 5), here = *kept(ring, slot + 6);
            between_rows(own[0], here, before, *kept(ring, slot + 1), at, s.height, last, down);
            if (at + 1 < end) between_rows(own[1], *kept(ring, slot + 7), here, *kept(ring, slot + 2), at + 1, s.height, last, down);
        }
        *kept(ring, slot) = own[0];
        *kept(ring, slot + 1) = own[1];
    }
}

/* The picture to which an item belongs. */
static __device__ __forceinline__ u32 picture_of(const Picture *table, u32 pictures, u32 item) {
    u32 low = 0, high = pictures;
    while (high - low > 1) {
        u32 middle = low + (high - low) / 2;
        if (table[middle].first <= item) low = middle;
        else high = middle;
    }
    return low;
}

/* Adds the lanes' sums to those of their pictures. Lanes of one picture follow one another. */
static __device__ __forceinline__ void collect(u32 picture, u32 sum[SUMS], u64 *sums) {
    u32 lane = threadIdx.x % LANES;
    UNROLLED for (u32 step = 1; step < LANES; step *= 2) {
        bool same = __shfl_down_sync(ALL_LANES, picture, step) == picture && lane + step < LANES;
        UNROLLED for (int i = 0; i < SUMS; i++) {
            u32 other = __shfl_down_sync(ALL_LANES, sum[i], step);
            if (same) sum[i] += other;
        }
    }
    u32 before = __shfl_up_sync(ALL_LANES, picture, 1);
    if (picture == NOBODY || (lane > 0 && before == picture)) return;
    for (int i = 0; i < SUMS; i++) atomicAdd(sums + (u64)picture * SUMS + i, (u64)sum[i]);
}

/* The planes of a picture. */
static __device__ __forceinline__ Strip strip_of(const Picture &picture, const u8 *input, u8 *output) {
    Strip s;
    s.width = picture.width;
    s.height = picture.height;
    s.luma = input + picture.input;
    s.u = s.luma + (u64)s.width * s.height;
    s.v = s.u + (u64)((s.width + 1) / 2) * ((s.height + 1) / 2);
    s.rgb = output + picture.output;
    s.x = 0;
    return s;
}

template <bool RESTORES>
static __device__ __forceinline__ void run(ARGUMENTS) {
    __shared__ uint4 ring[KEPT * THREADS];
    u32 item = blockIdx.x * THREADS + threadIdx.x, picture = NOBODY;
    Tally across = {}, down = {};
    if (item < items) {
        picture = picture_of(table, pictures, item);
        const Picture entry = table[picture];
        Strip s = strip_of(entry, input, output);
        u32 strips = (s.width + STRIP - 1) / STRIP, place = item - entry.first;
        s.x = place % strips * STRIP;
        int first = place / strips * entry.rows, end = first + (int)entry.rows;
        end = end < s.height ? end : s.height;
        if (s.width % STRIP == 0) walk<RESTORES, true>(s, first, end, ring + threadIdx.x, across, down);
        else walk<RESTORES, false>(s, first, end, ring + threadIdx.x, across, down);
    }
    across.within /= 255;
    u32 sum[SUMS] = {9 * across.within, 9 * across.within - across.wide + across.excess, across.all, across.borders,
                     across.crossings / 128, 9 * down.within, 9 * down.within - down.wide + down.excess, down.all, down.borders,
                     down.crossings / 128};
    collect(picture, sum, sums);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) analyse(ARGUMENTS) {
    run<true>(input, table, pictures, items, sums, output);
}

extern "C" __global__ void __launch_bounds__(THREADS) measure(ARGUMENTS) {
    run<false>(input, table, pictures, items, sums, output);
}

/* |a - b|, and what blur adds for it: 9·D_F and 9·V. */
static __device__ void add_plain(int f, int before, int after, int far, bool inside, bool border, u64 sum[5]) {
    int d = f > before ? f - before : before - f, wide = after > far ? after - far : far - after;
    sum[2] += d;
    if (border) sum[3] += d;
    if (!inside) return;
    sum[0] += 9 * d;
    if (9 * d > wide) sum[1] += 9 * d - wide;
}

static __device__ bool turns_plain(int a, int b, int c) { return (b > a && b > c) || (b < a && b < c); }

/* Block n takes picture n, n + blocks, …; thread n its samples n, n + 128, … */
extern "C" __global__ void __launch_bounds__(THREADS) analyse_plain(ARGUMENTS) {
    (void)items;
    for (u32 picture = blockIdx.x; picture < pictures; picture += gridDim.x) {
        Strip s = strip_of(table[picture], input, output);
        int w = s.width, h = s.height;
        u64 sum[SUMS] = {};
        for (int n = threadIdx.x; n < w * h; n += THREADS) {
            int x = n % w, y = n / w;
            const u8 *f = s.luma + n;
            if (x > 0) {
                bool inside = x > REACH && x + REACH < w;
                add_plain(f[0], f[-1], inside ? f[REACH] : 0, inside ? f[-REACH - 1] : 0, inside, x % 8 == 0, sum);
                if (x + 1 < w) sum[4] += turns_plain(f[-1], f[0], f[1]);
            }
            if (y > 0) {
                bool inside = y > REACH && y + REACH < h;
                add_plain(f[0], f[-w], inside ? f[REACH * w] : 0, inside ? f[-(REACH + 1) * w] : 0, inside, y % 8 == 0, sum + 5);
                if (y + 1 < h) sum[9] += turns_plain(f[-w], f[0], f[w]);
            }
            restore_sample(s, x, y);
        }
        for (int i = 0; i < SUMS; i++) atomicAdd(sums + (u64)picture * SUMS + i, sum[i]);
    }
}
