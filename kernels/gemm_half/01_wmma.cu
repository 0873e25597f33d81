// Product of half or bfloat16 matrices on tensor cores with CUDA C++'s wmma interface: D = alpha * A * B + beta * C.
//
// a: m x k, b: k x n, elements T; c, d: m x n, elements R (T or float); any strides, in elements; `batches` of each. c
// is not read if beta is 0. Sums are float, rounded to R once. Tiles are filled with zeros past the operand's edges.
//
// A block of four warps computes 64 x 64 outputs, each warp 32 x 32 as 2 x 2 fragments of 16 x 16. One warp-wide
// instruction multiplies 16 x 16 x 16; an FFMA of all lanes makes only 32 products. The lane that holds an element of a
// fragment is unspecified, so fragments are loaded from and stored to shared memory as a whole.
//
// Bottleneck: loading the operands, 2 bytes per load, with no copies in flight during the arithmetic. The next variant
// copies 16 bytes at a time and has larger tiles per warp.
#include <mma.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../common/numbers.cuh"

using namespace nvcuda;

constexpr int kTile = 64, kK = 32, kThreads = 128;
constexpr int kShare = kTile * kK / kThreads;                              // elements of each tile per thread
constexpr int kStepA = kThreads / kK, kStepB = kThreads / kTile;           // rows between them
constexpr int kPitchA = kK + 8, kPitchB = kTile + 8, kPitchD = kTile + 4;  // padding against bank conflicts

// grid: (tiles, 1, batches up to 65,535), block: 128
template <class T, class R>
__global__ void __launch_bounds__(kThreads) wmma_tile(const T* a, const T* b, const R* c, R* d, int64 a_row,
    int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row, int64 c_col, int64 c_batch,
    int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches, float alpha, float beta) {
    __shared__ __align__(32) T tile_a[kTile * kPitchA], tile_b[kK * kPitchB];
    __shared__ __align__(32) float sums[kTile * kPitchD];
    const int64 across = (n + kTile - 1) / kTile;  // tiles in a row of tiles
    const int64 m0 = blockIdx.x / across * kTile;  // 0 .. m - 1
    const int64 n0 = blockIdx.x % across * kTile;  // 0 .. n - 1
    const int warp = threadIdx.x / kWarp;          // 0 .. 3
    const int warp_m = warp / 2 * 32;              // 0 or 32
    const int warp_n = warp % 2 * 32;              // 0 or 32
    // The first elements this thread loads: lanes along k in A, along the columns in B
    const int a_line = threadIdx.x / kK;     // 0 .. kStepA - 1
    const int a_k = threadIdx.x % kK;        // 0 .. kK - 1
    const int b_k = threadIdx.x / kTile;     // 0 .. kStepB - 1
    const int b_line = threadIdx.x % kTile;  // 0 .. kTile - 1
    const T zero = static_cast<T>(0.0f);
    for (int64 z = blockIdx.z; z < batches; z += gridDim.z) {
        const T* from_a = a + z * a_batch + (m0 + a_line) * a_row + a_k * a_col;
        const T* from_b = b + z * b_batch + b_k * b_row + (n0 + b_line) * b_col;
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> total[2][2];
        for (auto& row : total)
            for (auto& each : row) wmma::fill_fragment(each, 0.0f);

        for (int64 k0 = 0; k0 < k; k0 += kK) {
            // All loads first, so that they are in flight together.
            T of_a[kShare], of_b[kShare];
#pragma unroll
            for (int i = 0; i < kShare; ++i) {
                const bool in_a = m0 + a_line + i * kStepA < m && k0 + a_k < k;
                const bool in_b = k0 + b_k + i * kStepB < k && n0 + b_line < n;
                of_a[i] = in_a ? from_a[i * kStepA * a_row] : zero;
                of_b[i] = in_b ? from_b[i * kStepB * b_row] : zero;
            }
            from_a += kK * a_col, from_b += kK * b_row;
#pragma unroll
            for (int i = 0; i < kShare; ++i) {
                const int line = a_line + i * kStepA;  // 0 .. kTile - 1
                const int line_k = b_k + i * kStepB;   // 0 .. kK - 1
                tile_a[line * kPitchA + a_k] = of_a[i];
                tile_b[line_k * kPitchB + b_line] = of_b[i];
            }
            __syncthreads();
#pragma unroll
            for (int s = 0; s < kK; s += 16) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> left[2];
                wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::row_major> right[2];
                for (int i = 0; i < 2; ++i) {
                    const int line_a = warp_m + i * 16;  // 0 .. kTile - 16
                    const int line_b = warp_n + i * 16;  // 0 .. kTile - 16
                    wmma::load_matrix_sync(left[i], tile_a + line_a * kPitchA + s, kPitchA);
                    wmma::load_matrix_sync(right[i], tile_b + s * kPitchB + line_b, kPitchB);
                }
                for (int i = 0; i < 2; ++i)
                    for (int j = 0; j < 2; ++j) wmma::mma_sync(total[i][j], left[i], right[j], total[i][j]);
            }
            __syncthreads();  // before the tiles are filled again
        }

        for (int i = 0; i < 2; ++i)
            for (int j = 0; j < 2; ++j) {
                const int tile_row = warp_m + i * 16;  // 0 .. kTile - 16
                const int tile_col = warp_n + j * 16;  // 0 .. kTile - 16
                float* const to = sums + tile_row * kPitchD + tile_col;
                wmma::store_matrix_sync(to, total[i][j], kPitchD, wmma::mem_row_major);
            }
        __syncthreads();
        for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
            const int tile_row = i / kTile;  // 0 .. kTile - 1
            const int64 row = m0 + tile_row;
            const int tile_col = i % kTile;  // 0 .. kTile - 1
            const int64 col = n0 + tile_col;
            if (row >= m || col >= n) continue;
            float value = alpha * sums[tile_row * kPitchD + tile_col];
            if (beta != 0.0f) value = fmaf(beta, static_cast<float>(c[z * c_batch + row * c_row + col * c_col]), value);
            d[z * d_batch + row * d_row + col * d_col] = static_cast<R>(value);
        }
        __syncthreads();  // before the next batch's sums
    }
}
