// Copies many pieces at once between a memory of the device and a staging area, by one kernel: messages are gathered into what
// leaves as a block, and scattered out of what came as one.

// As `Piece` in pdbp-cuda/src/device/mod.rs.
struct Piece {
    unsigned long long at;
    unsigned staged;
    unsigned bytes;
    unsigned rows;
    unsigned apart;
};

typedef unsigned char Byte;
typedef unsigned long long Address;

// The part of one of so many threads that copy `words` words together.
template <typename Word>
__device__ void copy_words(const Byte *from, Byte *to, unsigned words, unsigned lane, unsigned lanes) {
    for (unsigned word = lane; word < words; word += lanes)
        ((Word *)to)[word] = ((const Word *)from)[word];
}

// As words between the first and the last place where both ends are aligned, and byte by byte before and after.
template <typename Word>
__device__ void copy_aligned(const Byte *from, Byte *to, unsigned bytes, unsigned lane, unsigned lanes) {
    const unsigned head = min(bytes, (unsigned)(-(Address)to % sizeof(Word)));
    const unsigned words = (bytes - head) / sizeof(Word);
    const unsigned tail = head + words * sizeof(Word);
    copy_words<Byte>(from, to, head, lane, lanes);
    copy_words<Word>(from + head, to + head, words, lane, lanes);
    copy_words<Byte>(from + tail, to + tail, bytes - tail, lane, lanes);
}

// In the widest words for which both ends can be aligned.
__device__ void copy(const Byte *from, Byte *to, unsigned bytes, unsigned lane, unsigned lanes) {
    const Address apart = (Address)from ^ (Address)to;
    if (apart % 16 == 0)
        copy_aligned<uint4>(from, to, bytes, lane, lanes);
    else if (apart % 8 == 0)
        copy_aligned<uint2>(from, to, bytes, lane, lanes);
    else if (apart % 4 == 0)
        copy_aligned<unsigned>(from, to, bytes, lane, lanes);
    else
        copy_words<Byte>(from, to, bytes, lane, lanes);
}

// An entry of a table, which lies in the host's memory: in words as wide as can be.
__device__ Piece entry(const Piece *table, unsigned at) {
    const uint2 *words = (const uint2 *)(table + at);
    const uint2 where = words[0], row = words[1], rows = words[2];
    Piece piece = {(Address)where.y << 32 | where.x, row.x, row.y, rows.x, rows.y};
    return piece;
}

// How many threads copy a row of a piece, a power of 2: all of them, if there is a word for each.
__device__ unsigned row_lanes(unsigned bytes, unsigned lanes) {
    unsigned some = 1;
    while (some < lanes && some * 16 < bytes) some *= 2;
    return some;
}

// Groups of `lanes` threads, a power of 2 that divides those of a block, take one piece each, and then those that are left.
extern "C" __global__ void gather(const Piece *table, unsigned count, unsigned lanes, const Byte *memory, Byte *staging) {
    const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x, lane = thread % lanes;
    for (unsigned at = thread / lanes; at < count; at += gridDim.x * blockDim.x / lanes) {
        const Piece piece = entry(table, at);
        const unsigned some = row_lanes(piece.bytes, lanes);
        for (unsigned row = lane / some; row < piece.rows; row += lanes / some)
            copy(memory + piece.at + (Address)row * piece.apart, staging + piece.staged + row * piece.bytes, piece.bytes,
                lane % some, some);
    }
}

// As above, the other way.
extern "C" __global__ void scatter(const Piece *table, unsigned count, unsigned lanes, Byte *memory, const Byte *staging) {
    const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x, lane = thread % lanes;
    for (unsigned at = thread / lanes; at < count; at += gridDim.x * blockDim.x / lanes) {
        const Piece piece = entry(table, at);
        const unsigned some = row_lanes(piece.bytes, lanes);
        for (unsigned row = lane / some; row < piece.rows; row += lanes / some)
            copy(staging + piece.staged + row * piece.bytes, memory + piece.at + (Address)row * piece.apart, piece.bytes,
                lane % some, some);
    }
}
