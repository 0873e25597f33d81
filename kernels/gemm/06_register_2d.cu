// fp32 product, TM x TN outputs per thread, with the sums in registers.
//
// Parameters as in 01_naive_uncoalesced.cu.
//
// Improvement: for each k a thread reads TM floats of A and TN of B and multiplies all pairs: at 8 x 8, 64 fused
// multiply-adds need 16 floats; the previous variant reads 72. With 128 x 128 tiles, each float of A or B is loaded
// once for 128 uses.
//
// Bottleneck: shared memory, and loading the tiles. Neighbouring threads read B TN floats apart, which causes bank
// conflicts: 272 of 709 million shared-memory passes at 4096 (ncu). Tiles are loaded 4 bytes at a time, each load with
// its own address. The compiler reads A 16 bytes at a time along k: four k of 8 rows take 32 of the 128 registers that
// each thread has with two blocks per SM. The next variant uses 16-byte accesses everywhere and transposes the tile of
// A.
#include "output.cuh"

// grid: tiles of all batches, block: BM * BN / (TM * TN)
template <int BM, int BN, int BK, int TM, int TN>
__global__ void __launch_bounds__(BM* BN / (TM * TN), 2) register_2d(const float* a, const float* b, const float* c,
    float* d, int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row,
    int64 c_col, int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches,
    float alpha, float beta) {
    constexpr int kThreads = BM * BN / (TM * TN);
    constexpr int kAcross = BN / TN;  // threads across the tile
    static_assert(kThreads % BK == 0 && kThreads % BN == 0, "a thread loads floats of one k of A and one line of B");
    __shared__ float tile_a[BM][BK], tile_b[BK][BN];
    const int thread = threadIdx.x;  // 0 .. kThreads - 1
    // Its first output in the tile
    const int row = thread / kAcross * TM;  // 0 .. BM - TM
    const int col = thread % kAcross * TN;  // 0 .. BN - TN
    const BlockTile<BM, BN> tile(m, n);
    // The floats it loads: one k of A, from lines kStepA apart; one line of B, from k that are kStepB apart
    constexpr int kStepA = kThreads / BK, kStepB = kThreads / BN;
    const int line_a = thread / BK;  // 0 .. kStepA - 1
    const int k_a = thread % BK;     // 0 .. BK - 1
    const int k_b = thread / BN;     // 0 .. kStepB - 1
    const int line_b = thread % BN;  // 0 .. BN - 1
    const float* of_a = a + tile.batch * a_batch + (tile.m0 + line_a) * a_row + k_a * a_col;
    const float* of_b = b + tile.batch * b_batch + (tile.n0 + line_b) * b_col + k_b * b_row;
    float sums[TM][TN] = {};
    for (int64 left = k; left > 0; left -= BK, of_a += BK * a_col, of_b += BK * b_row) {
#pragma unroll
        for (int i = 0; i < BM; i += kStepA)
            tile_a[line_a + i][k_a] = tile.m0 + line_a + i < m && k_a < left ? of_a[i * a_row] : 0.0f;
#pragma unroll
        for (int i = 0; i < BK; i += kStepB)
            tile_b[k_b + i][line_b] = tile.n0 + line_b < n && k_b + i < left ? of_b[i * b_row] : 0.0f;
        __syncthreads();
#pragma unroll 4  // unrolling all of BK needs more registers for A than there are
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
            const int64 r = tile.m0 + row + i;
            const int64 s = tile.n0 + col + j;
            if (r < m && s < n) {
                const float* of_c = c + tile.batch * c_batch + r * c_row + s * c_col;
                d[tile.batch * d_batch + r * d_row + s * d_col] = combined(sums[i][j], alpha, beta, of_c);
            }
        }
}
