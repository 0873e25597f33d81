// fp32 product D = alpha * A * B + beta * C with 16 x 8 sums a thread and copies that run ahead of the arithmetic.
//
// Strides in floats; one axis of A and one of B has stride 1 (template constants say which). D may be C. beta == 0: C
// is not read. One block a tile of D, a loop over batches on z. Dynamic shared memory: STAGES tiles of A and B.
//
// What it adds: the tile after next is on its way by cp.async while this one is multiplied, one barrier a tile; a k is
// read from shared memory while the k before it is multiplied; 128 sums a thread, so that 6 loads feed 128 FFMA.
//
// Bound by: issue, 94 % of it FFMA, and register banks (fma_tile.cuh). What is left is the last wave: tiles that do not
// fill the chip. The next rungs split the k of a tile to have more to hand out.
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
    const int64 down = (m + BM - 1) / BM, m0 = blockIdx.x % down * BM, n0 = blockIdx.x / down * BN;
    for (int64 z = blockIdx.z; z < batches; z += gridDim.z) {
        Tile tile;
        tile.product(reinterpret_cast<float*>(stages), a + z * a_batch, a_row, a_col, b + z * b_batch, b_row, b_col, m0,
            n0, m, n, 0, k, (k + Tile::BK - 1) / Tile::BK, k / Tile::BK);
        tile.template store<VEC_D>(
            c + z * c_batch, c_row, c_col, d + z * d_batch, d_row, d_col, m0, n0, m, n, alpha, beta);
    }
}
