// fp32 product D = alpha * A * B + beta * C, one thread per output, neighbouring threads in neighbouring rows.
//
// A is (m, k), B (k, n), C and D (m, n), each with its own strides in floats: element (r, c) of batch z of A is a[z *
// a_batch + r * a_row + c * a_col]. Strides have any sign. For a transposed operand swap `row` and `col`; the leading
// dimension is the larger of the two. They are 64-bit: with 50,000 columns row * a_row exceeds 2^31 at row 42,950. They
// are scalars because one struct per operand was slower on an H200: naive by 50 % at 4096, pipelined by 3 to 4 %. D may
// be C itself. beta == 0: C is not read. k == 0: D = beta * C. Every variant of this family has these parameters;
// blockIdx.x also counts the batches.
//
// Bottleneck: uncoalesced access, on purpose. threadIdx.x runs down the rows of row-major arrays, so that the 32 lanes
// of a warp read 16 rows of A and each load takes 16 sectors of 32 bytes to load 64 bytes. The next variant swaps the
// block's axes and changes nothing else.
#include "output.cuh"

// grid: tiles of all batches, block: SIDE x SIDE
template <int SIDE>
__global__ void __launch_bounds__(SIDE* SIDE) naive_uncoalesced(const float* a, const float* b, const float* c,
    float* d, int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row,
    int64 c_col, int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches,
    float alpha, float beta) {
    const BlockTile<SIDE, SIDE> tile(m, n);
    const int64 row = tile.m0 + threadIdx.x;
    const int64 col = tile.n0 + threadIdx.y;
    if (row >= m || col >= n) return;
    const float* of_a = a + tile.batch * a_batch + row * a_row;
    const float* of_b = b + tile.batch * b_batch + col * b_col;
    float sum = 0.0f;
    for (int64 i = 0; i < k; ++i) sum = fmaf(of_a[i * a_col], of_b[i * b_row], sum);
    const float* of_c = c + tile.batch * c_batch + row * c_row + col * c_col;
    d[tile.batch * d_batch + row * d_row + col * d_col] = combined(sum, alpha, beta, of_c);
}
