// fp32 product D = alpha * A * B + beta * C with 16 x 8 sums per thread and copies that run ahead of the arithmetic.
//
// Parameters as in 01_naive_uncoalesced.cu; one axis of A and one of B has stride 1 (template constants select which).
// One block per tile of D, a loop over batches on z. Dynamic shared memory: STAGES tiles of A and B.
//
// Improvement: cp.async copies the tile after next while this one is multiplied, with one barrier per tile. Each k is
// read from shared memory while the previous k is multiplied. With 128 sums per thread, 6 loads feed 128 FFMA.
//
// Bottleneck: instruction issue, 94 % of it FFMA, and register banks (fma_tile.cuh). The rest is the last wave, whose
// tiles do not fill the chip. The next variants split a tile's k, so that there is more work to distribute.
#include "fma_tile.cuh"

// grid: (tiles, 1, batches up to 65,535), block: 32 * WARPS_M * WARPS_N
template <int BM, int BN, int TM, int TN, int WARPS_M, int WARPS_N, int STAGES, int RESIDENT, bool A_K, bool B_K,
    int VEC_A, int VEC_B, int VEC_D>
__global__ void __launch_bounds__(WARPS_M * WARPS_N * kWarp, RESIDENT) pipelined(const float* a, const float* b,
    const float* c, float* d, int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch,
    int64 c_row, int64 c_col, int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k,
    int64 batches, float alpha, float beta) {
    using Tile = FmaTile<BM, BN, TM, TN, WARPS_M, WARPS_N, STAGES, A_K, B_K, VEC_A, VEC_B>;
    extern __shared__ float4 stages[];
    float* const shared = reinterpret_cast<float*>(stages);
    const int64 down = (m + BM - 1) / BM;     // tiles in a column of tiles
    const int64 m0 = blockIdx.x % down * BM;  // 0 .. m - 1
    const int64 n0 = blockIdx.x / down * BN;  // 0 .. n - 1
    for (int64 z = blockIdx.z; z < batches; z += gridDim.z) {
        const float* of_a = a + z * a_batch;
        const float* of_b = b + z * b_batch;
        const int64 tiles = (k + Tile::BK - 1) / Tile::BK;
        const int64 whole = k / Tile::BK;
        Tile tile;
        tile.product(shared, of_a, a_row, a_col, of_b, b_row, b_col, m0, n0, m, n, 0, k, tiles, whole);
        const float* of_c = c + z * c_batch;
        float* of_d = d + z * d_batch;
        tile.template store<VEC_D>(of_c, c_row, c_col, of_d, d_row, d_col, m0, n0, m, n, alpha, beta);
    }
}
