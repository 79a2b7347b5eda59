/* A picture as NVDEC gives it, NV12, becomes one as the analysis takes it: planes without padding.

     planes   input (rows of luma, `pitch` bytes from one to the next, and behind them rows of both chroma planes, a sample of each in
              turn), pitch, width and height (both even), output (Y, U, V without padding)

   A block takes rows, its threads their samples in turn: each byte is read once and written once. */

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define THREADS 128

extern "C" __global__ void __launch_bounds__(THREADS) planes(const u8 *input, u32 pitch, u32 width, u32 height, u8 *output) {
    u64 luma = (u64)width * height, chroma = luma / 4;
    for (u32 row = blockIdx.x; row < height + height / 2; row += gridDim.x) {
        const u8 *from = input + (u64)row * pitch;
        for (u32 column = threadIdx.x; column < width; column += THREADS) {
            u8 sample = from[column];
            if (row < height) {
                output[(u64)row * width + column] = sample;
            } else {
                u64 place = (u64)(row - height) * (width / 2) + column / 2;
                output[luma + (column & 1 ? chroma : 0) + place] = sample;
            }
        }
    }
}
