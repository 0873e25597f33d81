// Row softmax for short contiguous rows that are not 16-byte aligned: a block moves several whole rows as one aligned
// span.
//
// Parameters as in 01_thread_per_row.cu, with x_col = y_col = 1 and x_row = y_row = cols. A row of 127 floats starts at
// any multiple of 4 bytes: row by row, no 16-byte access is legal, and each 128-byte request touches a fifth sector.
// ROWS rows, ROWS a multiple of 4, always have a multiple of 16 bytes. So the block copies its span to shared memory
// with 16 bytes per lane, each warp computes its rows there, and the block writes the span back with 16 bytes per lane.
//
// Dynamic shared memory: ROWS * cols * 4 bytes. ITEMS * 32 is at least cols.
//
// Bottleneck: memory bandwidth, 8 bytes per element. The copy loops are unrolled to ROWS * ITEMS * 8 pieces, so that
// all loads of a thread are in flight at once: 0.98 of copy bandwidth, 0.95 with loops of unknown length (H200,
// 131072x127).
#include "../common/reduce.cuh"

// Calls use(i) for every i < count that belongs to this thread; count is at most LIMIT.
template <int BLOCK, int LIMIT, class Use>
__device__ __forceinline__ void share_of_block(int count, Use use) {
#pragma unroll
    for (int k = 0; k < (LIMIT + BLOCK - 1) / BLOCK; ++k) {
        const int i = k * BLOCK + threadIdx.x;
        if (i < count) use(i);
    }
}

// x, y: (rows, cols), contiguous, 16-byte aligned; grid: ceil(rows / ROWS), block: BLOCK, shared: ROWS * cols * 4 bytes
template <int BLOCK, int ROWS, int ITEMS>
__global__ void __launch_bounds__(BLOCK) span(
    const float* x, float* y, int64 x_row, int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    constexpr int kRows = ROWS / (BLOCK / kWarp);      // of a warp
    constexpr int kPieces = ROWS * ITEMS * kWarp / 4;  // of a span, at most
    static_assert(BLOCK % kWarp == 0 && ROWS % 4 == 0, "whole warps, spans of whole 16-byte pieces");
    static_assert(kRows * (BLOCK / kWarp) == ROWS, "the same number of rows for each warp");
    extern __shared__ float4 pieces[];
    float* floats = reinterpret_cast<float*>(pieces);

    const int lane = threadIdx.x % kWarp;      // 0 .. 31
    const int warp = threadIdx.x / kWarp;      // 0 .. BLOCK / 32 - 1
    const int row = warp * kRows;              // the warp's first row in the span: 0 .. ROWS - kRows
    const int width = static_cast<int>(cols);  // 1 .. ITEMS * 32
    const int64 first = static_cast<int64>(blockIdx.x) * ROWS;
    const int here = static_cast<int>(rows - first < ROWS ? rows - first : ROWS);  // rows of the span: 1 .. ROWS
    const int whole = here * width / 4;                                            // pieces
    const int rest = here * width % 4;  // floats after them, if the last rows do not fill their last piece: 0 .. 3
    const float4* from = reinterpret_cast<const float4*>(x + first * cols);
    float4* to = reinterpret_cast<float4*>(y + first * cols);
    const float* from_rest = reinterpret_cast<const float*>(from + whole);
    float* to_rest = reinterpret_cast<float*>(to + whole);

    share_of_block<BLOCK, kPieces>(whole, [&](int i) { pieces[i] = from[i]; });
    if (threadIdx.x < rest) floats[whole * 4 + threadIdx.x] = from_rest[threadIdx.x];
    __syncthreads();

    float held[kRows][ITEMS], maximum[kRows], sum[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        maximum[r] = -kInfinity;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int c = i * kWarp + lane;           // 0 .. ITEMS * 32 - 1
            const int place = (row + r) * width + c;  // in the span
            held[r][i] = row + r < here && c < width ? floats[place] : -kInfinity;
            maximum[r] = fmaxf(maximum[r], held[r][i]);
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) maximum[r] = lanes_reduce<kWarp>(maximum[r], Max());
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        sum[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            held[r][i] = expf(held[r][i] - maximum[r]);
            sum[r] += held[r][i];
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] = lanes_reduce<kWarp>(sum[r], Sum());
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        const float scale = 1.0f / sum[r];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int c = i * kWarp + lane;           // 0 .. ITEMS * 32 - 1
            const int place = (row + r) * width + c;  // in the span
            if (row + r < here && c < width) floats[place] = held[r][i] * scale;
        }
    }
    __syncthreads();

    share_of_block<BLOCK, kPieces>(whole, [&](int i) { to[i] = pieces[i]; });
    if (threadIdx.x < rest) to_rest[threadIdx.x] = floats[whole * 4 + threadIdx.x];
}
