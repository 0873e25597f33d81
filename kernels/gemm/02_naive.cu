// fp32 product, one thread per output, neighbouring threads in neighbouring columns.
//
// Parameters as in 01_naive_uncoalesced.cu.
//
// Improvement: coalesced access. threadIdx.x runs along a row of B and D. A warp covers 2 rows of 16 columns, so a
// load of B takes 2 full sectors, and a load of A has two addresses, each shared by 16 lanes.
//
// Bottleneck: the load units. Every fused multiply-add needs two loads from L1 or L2; each row of A is read n times and
// each column of B m times. The next variant loads each tile once for 16 uses.
#include "output.cuh"

// grid: tiles of all batches, block: SIDE x SIDE
template <int SIDE>
__global__ void __launch_bounds__(SIDE* SIDE) naive(const float* a, const float* b, const float* c, float* d,
    int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row, int64 c_col,
    int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches, float alpha,
    float beta) {
    const BlockTile<SIDE, SIDE> tile(m, n);
    const int64 row = tile.m0 + threadIdx.y;
    const int64 col = tile.n0 + threadIdx.x;
    if (row >= m || col >= n) return;
    const float* of_a = a + tile.batch * a_batch + row * a_row;
    const float* of_b = b + tile.batch * b_batch + col * b_col;
    float sum = 0.0f;
    for (int64 i = 0; i < k; ++i) sum = fmaf(of_a[i * a_col], of_b[i * b_row], sum);
    const float* of_c = c + tile.batch * c_batch + row * c_row + col * c_col;
    d[tile.batch * d_batch + row * d_row + col * d_col] = combined(sum, alpha, beta, of_c);
}
