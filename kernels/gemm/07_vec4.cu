// fp32 product, 8 x 8 outputs per thread, with 16-byte accesses to global and shared memory.
//
// Parameters as in 01_naive_uncoalesced.cu; one axis of A and one of B has stride 1 (template constants say which). An
// operand or output whose rows are not 16-byte aligned is accessed 4 bytes at a time; the rest is unchanged.
//
// Improvement: each global load or store moves four floats, so that a thread loads its share of a tile in 2 loads
// instead of 8. The tile of A is transposed in shared memory, [k][row], so that a thread reads its 8 rows of one k in
// two 16-byte reads and needs 8 registers.
//
// Bottleneck: bank conflicts. The transposing stores put k and k + 4 of a line in the same bank, and neighbouring
// threads read 8 columns apart, so that two of them share a bank: 302 of 744 million shared-memory passes at 4096
// (ncu). The next variant arranges the threads differently.
#include "wide_tile.cuh"

// grid: tiles of all batches, block: BM * BN / 64
template <int BM, int BN, int BK, bool A_K, bool B_K, int VEC_A, int VEC_B, int VEC_D>
__global__ void __launch_bounds__(BM* BN / 64, 2) vec4(const float* a, const float* b, const float* c, float* d,
    int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row, int64 c_col,
    int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches, float alpha,
    float beta) {
    constexpr int TM = 8, TN = 8, kThreads = BM * BN / (TM * TN);
    constexpr int kAcross = BN / TN;  // threads across the tile
    __shared__ __align__(16) float tile_a[BK * BM], tile_b[BK * BN];
    const int row = threadIdx.x / kAcross * TM;  // 0 .. BM - TM
    const int col = threadIdx.x % kAcross * TN;  // 0 .. BN - TN
    const BlockTile<BM, BN> tile(m, n);
    const float* of_a = a + tile.batch * a_batch;
    const float* of_b = b + tile.batch * b_batch;
    float sums[TM][TN] = {};
    for (int64 k0 = 0; k0 < k; k0 += BK) {
        bring<BM, BK, A_K, VEC_A, BM, kThreads>(of_a, a_row, a_col, tile.m0, m, k0, k, tile_a);
        bring<BN, BK, B_K, VEC_B, BN, kThreads>(of_b, b_col, b_row, tile.n0, n, k0, k, tile_b);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            float values_a[TM], values_b[TN];
#pragma unroll
            for (int r = 0; r < TM; r += 4) read_four(tile_a + i * BM + row + r, values_a + r);
#pragma unroll
            for (int s = 0; s < TN; s += 4) read_four(tile_b + i * BN + col + s, values_b + s);
#pragma unroll
            for (int r = 0; r < TM; ++r)
#pragma unroll
                for (int s = 0; s < TN; ++s) sums[r][s] = fmaf(values_a[r], values_b[s], sums[r][s]);
        }
        __syncthreads();
    }
    const float* of_c = c + tile.batch * c_batch;
    float* of_d = d + tile.batch * d_batch;
#pragma unroll
    for (int r = 0; r < TM; ++r)
#pragma unroll
        for (int s = 0; s < TN; s += 4) {
            const int64 line = tile.m0 + row + r;
            const int64 column = tile.n0 + col + s;
            write_four<VEC_D>(sums[r] + s, of_c, c_row, c_col, of_d, d_row, d_col, line, column, m, n, alpha, beta);
        }
}
