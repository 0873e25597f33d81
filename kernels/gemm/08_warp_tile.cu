// fp32 product in which each warp has its own tile of 64 x 32 outputs, arranged to avoid bank conflicts.
//
// Parameters as in 07_vec4.cu.
//
// Improvement: the arrangement of lanes in a warp's tile. A warp computes WM x WN of the block's tile with 8 x 4 lanes.
// A lane's 8 x 8 outputs are four groups of 4 x 4, 32 rows and 16 columns apart. So neighbouring lanes read
// neighbouring 16-byte pieces: the 8 lanes of a column read 128 contiguous bytes of A, the 4 lanes of a row 64 bytes of
// B, and lanes with the same piece share one access. A warp also reads less: 64 + 32 floats per k instead of 16 + 128.
// Rows of a transposed tile are padded by 4 floats, which moves the stores of k and k + 4 half the banks apart. At 4096
// this leaves 443 million shared-memory passes, 6 million of them conflicts (ncu).
//
// Bottleneck: latency. Between barriers a tile is first loaded, then multiplied. While loads are in flight,
// only the SM's other block computes (the FMA pipes are busy 55 % of the time). The next variant loads tiles
// ahead.
#include "wide_tile.cuh"

// grid: tiles of all batches, block: 32 * (BM / WM) * (BN / WN)
template <int BM, int BN, int BK, int WM, int WN, bool A_K, bool B_K, int VEC_A, int VEC_B, int VEC_D>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * kWarp, 2) warp_tile(const float* a, const float* b,
    const float* c, float* d, int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch,
    int64 c_row, int64 c_col, int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k,
    int64 batches, float alpha, float beta) {
    constexpr int TM = 8, TN = 8, kThreads = BM / WM * (BN / WN) * kWarp;
    constexpr int kWarpsAcross = BN / WN;
    constexpr int kDown = WM / TM, kAcross = WN / TN;  // lanes of a warp
    static_assert(kDown * kAcross == kWarp, "one lane per 8 x 8 outputs of a warp's tile");
    constexpr int kPitchA = BM + (A_K ? 4 : 0), kPitchB = BN + (B_K ? 4 : 0);
    __shared__ __align__(16) float tile_a[BK * kPitchA], tile_b[BK * kPitchB];
    const int lane = threadIdx.x % kWarp;  // 0 .. 31
    const int warp = threadIdx.x / kWarp;  // 0 .. kThreads / 32 - 1
    // The first output of the warp in the block's tile, and of the lane in the warp's: four rows of four columns
    const int warp_row = warp / kWarpsAcross * WM;  // 0 .. BM - WM
    const int warp_col = warp % kWarpsAcross * WN;  // 0 .. BN - WN
    const int lane_row = lane / kAcross * 4;        // 0 .. kDown * 4 - 4
    const int lane_col = lane % kAcross * 4;        // 0 .. kAcross * 4 - 4
    const int row = warp_row + lane_row;
    const int col = warp_col + lane_col;
    const BlockTile<BM, BN> tile(m, n);
    const float* of_a = a + tile.batch * a_batch;
    const float* of_b = b + tile.batch * b_batch;
    float sums[TM][TN] = {};
    for (int64 k0 = 0; k0 < k; k0 += BK) {
        bring<BM, BK, A_K, VEC_A, kPitchA, kThreads>(of_a, a_row, a_col, tile.m0, m, k0, k, tile_a);
        bring<BN, BK, B_K, VEC_B, kPitchB, kThreads>(of_b, b_col, b_row, tile.n0, n, k0, k, tile_b);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            float values_a[TM], values_b[TN];
#pragma unroll
            for (int r = 0; r < TM; r += 4) read_four(tile_a + i * kPitchA + row + r * kDown, values_a + r);
#pragma unroll
            for (int s = 0; s < TN; s += 4) read_four(tile_b + i * kPitchB + col + s * kAcross, values_b + s);
#pragma unroll
            for (int r = 0; r < TM; ++r)
#pragma unroll
                for (int s = 0; s < TN; ++s) sums[r][s] = fmaf(values_a[r], values_b[s], sums[r][s]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < TM; ++r)
#pragma unroll
        for (int s = 0; s < TN; s += 4) {
            const int group_row = r / 4 * (kDown * 4);  // 0 or kDown * 4: the first row of the 4 x 4 group
            const int group_col = s * kAcross;          // 0 or kAcross * 4
            const float* of_c = c + tile.batch * c_batch;
            float* of_d = d + tile.batch * d_batch;
            const int64 line = tile.m0 + row + group_row + r % 4;
            const int64 column = tile.n0 + col + group_col;
            write_four<VEC_D>(sums[r] + s, of_c, c_row, c_col, of_d, d_row, d_col, line, column, m, n, alpha, beta);
        }
}
