// fp32 product D = alpha * A * B + beta * C, one thread per output, neighbouring threads in neighbouring rows.
//
// A is (m, k), B (k, n), C and D (m, n), each with its own strides in floats: element (r, c) of batch z of A is
// a[z * a_strides.batch + r * a_strides.row + c * a_strides.col]. Strides have any sign; a leading dimension is the
// larger one. D may be C itself. beta == 0: C is not read. k == 0: D = beta * C. Every rung of this family has these
// parameters; blocks count through the batches.
//
// Bound by: uncoalesced access, on purpose. threadIdx.x runs down the rows of row-major arrays, so that the 32 lanes of
// a warp read 16 rows of A and each load takes 16 sectors of 32 bytes to bring 64 bytes. The next rung turns the block
// by 90 degrees and changes nothing else.
#include "output.cuh"

// grid: tiles of all batches, block: SIDE x SIDE
template <int SIDE>
__global__ void __launch_bounds__(SIDE* SIDE) naive_uncoalesced(const float* a, const float* b, const float* c,
    float* d, const __grid_constant__ Strides a_strides, const __grid_constant__ Strides b_strides,
    const __grid_constant__ Strides c_strides, const __grid_constant__ Strides d_strides, int64 m, int64 n, int64 k,
    int64 batches, float alpha, float beta) {
    const BlockTile<SIDE, SIDE> tile(m, n);
    const int64 row = tile.m0 + threadIdx.x;
    const int64 col = tile.n0 + threadIdx.y;
    if (row >= m || col >= n) return;
    const float* of_a = a + a_strides.offset(tile.batch, row, 0);
    const float* of_b = b + b_strides.offset(tile.batch, 0, col);
    float sum = 0.0f;
    for (int64 i = 0; i < k; ++i) sum = fmaf(of_a[i * a_strides.col], of_b[i * b_strides.row], sum);
    const float* of_c = c + c_strides.offset(tile.batch, row, col);
    d[d_strides.offset(tile.batch, row, col)] = combined(sum, alpha, beta, of_c);
}
