// fp32 product in which SLICES groups of warps of a block share the k of a tile.
//
// Parameters as in 09_pipelined.cu. Dynamic shared memory: SLICES rings of STAGES tiles.
//
// Improvement: more warps per tile. A product of 1024 x 1024 has 128 tiles of 64 x 128, one per SM, and four warps per
// SM cannot hide each other's latency. Two groups of four warps each take half of k and add their sums in shared memory
// at the end: twice the warps on the same tile, without traffic to device memory.
//
// Bottleneck: with fewer tiles than SMs, some SMs stay idle. The next variant splits a tile's k among blocks.
#include "fma_tile.cuh"

// grid: (tiles, 1, batches up to 65,535), block: 32 * WARPS_M * WARPS_N * SLICES
template <int BM, int BN, int TM, int TN, int WARPS_M, int WARPS_N, int STAGES, int SLICES, int RESIDENT, bool A_K,
    bool B_K, int VEC_A, int VEC_B, int VEC_D>
__global__ void __launch_bounds__(WARPS_M * WARPS_N * kWarp * SLICES, RESIDENT) sliced(const float* a, const float* b,
    const float* c, float* d, int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch,
    int64 c_row, int64 c_col, int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k,
    int64 batches, float alpha, float beta) {
    using Tile = FmaTile<BM, BN, TM, TN, WARPS_M, WARPS_N, STAGES, A_K, B_K, VEC_A, VEC_B>;
    static_assert(SLICES * STAGES * Tile::kStage >= BM * BN, "the sums of a slice use the memory of its tiles");
    extern __shared__ float4 stages[];
    float* const shared = reinterpret_cast<float*>(stages);
    const int slice = threadIdx.x / Tile::kThreads;  // 0 .. SLICES - 1
    const int64 down = (m + BM - 1) / BM;            // tiles in a column of tiles
    const int64 m0 = blockIdx.x % down * BM;         // 0 .. m - 1
    const int64 n0 = blockIdx.x / down * BN;         // 0 .. n - 1
    // Each slice takes the same number of steps of BK; the last slices may end early or have no k.
    const int64 tiles = (k + Tile::BK * SLICES - 1) / (Tile::BK * SLICES);  // steps of a slice
    const int64 depth = tiles * Tile::BK;                                   // k of a slice
    for (int64 z = blockIdx.z; z < batches; z += gridDim.z) {
        const float* of_a = a + z * a_batch;
        const float* of_b = b + z * b_batch;
        const int64 k0 = slice * depth;
        const int64 k1 = slice + 1 == SLICES || (slice + 1) * depth > k ? k : (slice + 1) * depth;
        const int64 whole = (k - (SLICES - 1) * depth) / Tile::BK;  // whole steps of the last slice
        float* const ring = shared + slice * STAGES * Tile::kStage;
        Tile tile;
        tile.product(ring, of_a, a_row, a_col, of_b, b_row, b_col, m0, n0, m, n, k0, k1, tiles, whole);
        tile.gather(shared, SLICES);
        if (slice == 0) {
            const float* of_c = c + z * c_batch;
            float* of_d = d + z * d_batch;
            tile.template store<VEC_D>(of_c, c_row, c_col, of_d, d_row, d_col, m0, n0, m, n, alpha, beta);
        }
    }
}
