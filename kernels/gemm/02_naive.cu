// fp32 product, one thread per output, neighbouring threads in neighbouring columns.
//
// Parameters as in 01_naive_uncoalesced.cu.
//
// What it adds: threadIdx.x runs along a row of B and D. A warp covers 2 rows of 16 columns, so that a load of B takes
// 2 sectors and uses them whole, and a load of A is two addresses that all lanes share.
//
// Bound by: the load units. Every fused multiply-add needs two loads from L1 or L2; each row of A is read n times and
// each column of B m times. The next rung brings a tile once for 16 uses.
#include "output.cuh"

// grid: tiles of all batches, block: SIDE x SIDE
template <int SIDE>
__global__ void __launch_bounds__(SIDE* SIDE) naive(const float* a, const float* b, const float* c, float* d,
    const __grid_constant__ Strides a_strides, const __grid_constant__ Strides b_strides,
    const __grid_constant__ Strides c_strides, const __grid_constant__ Strides d_strides, int64 m, int64 n, int64 k,
    int64 batches, float alpha, float beta) {
    const BlockTile<SIDE, SIDE> tile(m, n);
    const int64 row = tile.m0 + threadIdx.y;
    const int64 col = tile.n0 + threadIdx.x;
    if (row >= m || col >= n) return;
    const float* of_a = a + a_strides.offset(tile.batch, row, 0);
    const float* of_b = b + b_strides.offset(tile.batch, 0, col);
    float sum = 0.0f;
    for (int64 i = 0; i < k; ++i) sum = fmaf(of_a[i * a_strides.col], of_b[i * b_strides.row], sum);
    const float* of_c = c + c_strides.offset(tile.batch, row, col);
    d[d_strides.offset(tile.batch, row, col)] = combined(sum, alpha, beta, of_c);
}
