// fp32 product, TM outputs of one column per thread, with the sums in registers.
//
// Parameters as in 01_naive_uncoalesced.cu.
//
// Improvement: a thread reads one float of B and uses it for TM rows. TM fused multiply-adds take TM + 1 reads of
// shared memory instead of 2 * TM, and the tile grows to 64 x 64 with 512 threads.
//
// Bottleneck: still shared memory: each float of A is read once per use. The next variant keeps several columns too, so
// that a float of A is used TN times.
#include "output.cuh"

// grid: tiles of all batches, block: BM * BN / TM
template <int BM, int BN, int BK, int TM>
__global__ void __launch_bounds__(BM* BN / TM, 2) register_1d(const float* a, const float* b, const float* c, float* d,
    int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row, int64 c_col,
    int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches, float alpha,
    float beta) {
    constexpr int kThreads = BM * BN / TM;
    static_assert(BM * BK == kThreads && BK * BN == kThreads, "every thread loads one float of A and one of B");
    __shared__ float tile_a[BM][BK], tile_b[BK][BN];
    const int thread = threadIdx.x;  // 0 .. kThreads - 1
    // The elements it loads of A and of B
    const int line_a = thread / BK;  // 0 .. BM - 1
    const int k_a = thread % BK;     // 0 .. BK - 1
    const int k_b = thread / BN;     // 0 .. BK - 1
    const int line_b = thread % BN;  // 0 .. BN - 1
    // Its first output in the tile
    const int row = thread / BN * TM;  // 0 .. BM - TM
    const int col = thread % BN;       // 0 .. BN - 1
    const BlockTile<BM, BN> tile(m, n);
    const float* of_a = a + tile.batch * a_batch + (tile.m0 + line_a) * a_row + k_a * a_col;
    const float* of_b = b + tile.batch * b_batch + (tile.n0 + line_b) * b_col + k_b * b_row;
    const bool inside_a = tile.m0 + line_a < m;
    const bool inside_b = tile.n0 + line_b < n;
    float sums[TM] = {};
    for (int64 left = k; left > 0; left -= BK, of_a += BK * a_col, of_b += BK * b_row) {
        tile_a[line_a][k_a] = inside_a && k_a < left ? *of_a : 0.0f;
        tile_b[k_b][line_b] = inside_b && k_b < left ? *of_b : 0.0f;
        __syncthreads();
#pragma unroll 4  // unrolling all of BK needs more registers for A than there are
        for (int i = 0; i < BK; ++i) {
            const float value = tile_b[i][col];
#pragma unroll
            for (int r = 0; r < TM; ++r) sums[r] = fmaf(tile_a[row + r][i], value, sums[r]);
        }
        __syncthreads();
    }
    const int64 s = tile.n0 + col;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int64 r = tile.m0 + row + i;
        if (r < m && s < n) {
            const float* of_c = c + tile.batch * c_batch + r * c_row + s * c_col;
            d[tile.batch * d_batch + r * d_row + s * d_col] = combined(sums[i], alpha, beta, of_c);
        }
    }
}
