// fp32 product, one thread per output, TILE x TILE tiles of A and B in shared memory. Two variants: TILE = 16 and 32.
//
// Parameters as in 01_naive_uncoalesced.cu. Elements past m, n or k are loaded as zeros, which add nothing, so that the
// inner loop needs no bounds checks. Threads past the edges do not exit: all threads of a block must reach each
// barrier.
//
// Improvement: shared memory. The block loads one tile of A and one of B and reads every element TILE times from
// shared memory, so global traffic falls by a factor of TILE. Two barriers per tile: the first separates the stores
// from the reads, the second separates the reads from the stores of the next tile.
//
// TILE = 32 halves the traffic of 16 and uses the largest block, 1,024 threads; 64 would need 4,096 threads, too many
// for one block. The gain is small (H200, 4096: 8.0 TFLOP/s both), since traffic is no longer the bottleneck.
// __launch_bounds__ limits registers so that an SM holds all its 2,048 threads. Without it the compiler takes 40
// registers per thread, only one block of 32 x 32 fits, and the SM idles at every barrier (5.4 TFLOP/s).
//
// Bottleneck: shared memory. Each fused multiply-add still reads two floats, now from shared memory instead of L1. The
// next variant keeps several outputs in each thread's registers, so that each read is used more than once.
#include "output.cuh"

constexpr int kMostThreads = 1024;  // of a block

// grid: tiles of all batches, block: TILE x TILE
template <int TILE>
__global__ void __launch_bounds__(TILE* TILE < kMostThreads ? TILE * TILE : kMostThreads,
    TILE* TILE < kMostThreads ? 2 * kMostThreads / (TILE * TILE) : 2)
tiled(const float* a, const float* b, const float* c, float* d, int64 a_row, int64 a_col, int64 a_batch, int64 b_row,
    int64 b_col, int64 b_batch, int64 c_row, int64 c_col, int64 c_batch, int64 d_row, int64 d_col, int64 d_batch,
    int64 m, int64 n, int64 k, int64 batches, float alpha, float beta) {
    __shared__ float tile_a[TILE][TILE], tile_b[TILE][TILE];
    const int x = threadIdx.x;  // 0 .. TILE - 1
    const int y = threadIdx.y;  // 0 .. TILE - 1
    const BlockTile<TILE, TILE> tile(m, n);
    const int64 row = tile.m0 + y;
    const int64 col = tile.n0 + x;
    const float* of_a = a + tile.batch * a_batch + row * a_row;
    const float* of_b = b + tile.batch * b_batch + col * b_col;
    float sum = 0.0f;
    for (int64 k0 = 0; k0 < k; k0 += TILE) {
        const int64 k_a = k0 + x;  // this thread loads this k of A,
        const int64 k_b = k0 + y;  // and this k of B
        tile_a[y][x] = row < m && k_a < k ? of_a[k_a * a_col] : 0.0f;
        tile_b[y][x] = col < n && k_b < k ? of_b[k_b * b_row] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; ++i) sum = fmaf(tile_a[y][i], tile_b[i][x], sum);
        __syncthreads();
    }
    if (row >= m || col >= n) return;
    const float* of_c = c + tile.batch * c_batch + row * c_row + col * c_col;
    d[tile.batch * d_batch + row * d_row + col * d_col] = combined(sum, alpha, beta, of_c);
}
