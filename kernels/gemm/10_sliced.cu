// fp32 product whose blocks share the k of their tile among SLICES groups of warps.
//
// Parameters as in 09_pipelined.cu. Dynamic shared memory: SLICES rings of STAGES tiles.
//
// What it adds: a product of 1024 x 1024 has 128 tiles of 64 x 128, one a multiprocessor, and four warps there cannot
// hide each other's waits. Two groups of four warps take half of k each, and their sums meet in shared memory at the
// end: twice the warps on the same tile, and nothing goes through device memory.
//
// Bound by: tiles fewer than multiprocessors stay so. The next rung shares a tile's k among blocks.
#include "fma_tile.cuh"

// grid: (tiles, 1, batches up to 65,535), block: 32 * WARPS_M * WARPS_N * SLICES
template <int BM, int BN, int TM, int TN, int WARPS_M, int WARPS_N, int STAGES, int SLICES, int RESIDENT, bool A_K,
    bool B_K, int VEC_A, int VEC_B, int VEC_D>
__global__ void __launch_bounds__(WARPS_M * WARPS_N * kWarp * SLICES, RESIDENT) sliced(const float* a, const float* b,
    const float* c, float* d, int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch,
    int64 c_row, int64 c_col, int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k,
    int64 batches, float alpha, float beta) {
    using Tile = FmaTile<BM, BN, TM, TN, WARPS_M, WARPS_N, STAGES, A_K, B_K, VEC_A, VEC_B>;
    static_assert(SLICES * STAGES * Tile::kStage >= BM * BN, "the sums of a slice lie where its tiles lay");
    extern __shared__ float4 stages[];
    float* const shared = reinterpret_cast<float*>(stages);
    const int slice = threadIdx.x / Tile::kThreads;
    const int64 down = (m + BM - 1) / BM, m0 = blockIdx.x % down * BM, n0 = blockIdx.x / down * BN;
    const int64 tiles = (k + Tile::BK * SLICES - 1) / (Tile::BK * SLICES), depth = tiles * Tile::BK;
    for (int64 z = blockIdx.z; z < batches; z += gridDim.z) {
        Tile tile;
        tile.product(shared + slice * STAGES * Tile::kStage, a + z * a_batch, a_row, a_col, b + z * b_batch, b_row,
            b_col, m0, n0, m, n, slice * depth,
            slice + 1 == SLICES || (slice + 1) * depth > k ? k : (slice + 1) * depth, tiles,
            (k - (SLICES - 1) * depth) / Tile::BK);
        tile.gather(shared, SLICES);
        if (slice == 0)
            tile.template store<VEC_D>(
                c + z * c_batch, c_row, c_col, d + z * d_batch, d_row, d_col, m0, n0, m, n, alpha, beta);
    }
}
