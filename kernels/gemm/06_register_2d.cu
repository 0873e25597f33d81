// fp32 product, TM x TN outputs a thread.
//
// Parameters as in 01_naive_uncoalesced.cu.
//
// What it adds: of each k a thread reads TM floats of A and TN of B and multiplies each with each: 64 fused
// multiply-adds for 16 reads at 8 x 8, where the rung before takes 72. A 128 x 128 tile brings a float of A or B once
// for 128 uses.
//
// Bound by: shared memory, in pieces of 4 bytes and with bank conflicts. Neighbouring threads are TN floats apart in
// the tile of B, so that 16 lanes meet in 4 of 32 banks: four passes for each read. The next rung reads four floats at
// once, from shared and from global memory.
#include "output.cuh"

// grid: tiles of all batches, block: BM * BN / (TM * TN)
template <int BM, int BN, int BK, int TM, int TN>
__global__ void __launch_bounds__(BM* BN / (TM * TN)) register_2d(const float* a, const float* b, const float* c,
    float* d, int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row,
    int64 c_col, int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches,
    float alpha, float beta) {
    constexpr int kThreads = BM * BN / (TM * TN);
    static_assert(BM * BK % kThreads == 0 && BK * BN % kThreads == 0, "every thread brings the same share");
    __shared__ float tile_a[BM][BK], tile_b[BK][BN];
    const int thread = threadIdx.x;
    const int row = thread / (BN / TN) * TM, col = thread % (BN / TN) * TN;
    const BlockTile<BM, BN> tile(m, n);
    const float* of_a = a + tile.batch * a_batch + tile.m0 * a_row;
    const float* of_b = b + tile.batch * b_batch + tile.n0 * b_col;
    float sums[TM][TN] = {};
    for (int64 k0 = 0; k0 < k; k0 += BK) {
#pragma unroll
        for (int at = thread; at < BM * BK; at += kThreads) {
            const int line = at / BK, i = at % BK;
            tile_a[line][i] = tile.m0 + line < m && k0 + i < k ? of_a[line * a_row + (k0 + i) * a_col] : 0.0f;
        }
#pragma unroll
        for (int at = thread; at < BK * BN; at += kThreads) {
            const int i = at / BN, line = at % BN;
            tile_b[i][line] = tile.n0 + line < n && k0 + i < k ? of_b[line * b_col + (k0 + i) * b_row] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            float values_a[TM], values_b[TN];
#pragma unroll
            for (int r = 0; r < TM; ++r) values_a[r] = tile_a[row + r][i];
#pragma unroll
            for (int s = 0; s < TN; ++s) values_b[s] = tile_b[i][col + s];
#pragma unroll
            for (int r = 0; r < TM; ++r)
#pragma unroll
                for (int s = 0; s < TN; ++s) sums[r][s] = fmaf(values_a[r], values_b[s], sums[r][s]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            const int64 r = tile.m0 + row + i, s = tile.n0 + col + j;
            if (r < m && s < n)
                d[tile.batch * d_batch + r * d_row + s * d_col] =
                    combined(sums[i][j], alpha, beta, c + tile.batch * c_batch + r * c_row + s * c_col);
        }
}
