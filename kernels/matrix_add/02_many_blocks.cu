// C = A + B for one matrix, one block per 16x16 tile.
//
// A, B, C are (rows, cols) with any strides in elements. threadIdx.x runs along the columns, which are neighbours in
// memory. The grid is rounded up, and threads past the edge do nothing: rounded down, a 100x100 matrix would get 6x6
// tiles and its last four rows and columns would not be written. A grid has at most 65,535 blocks along y; a
// grid-stride loop covers more rows of tiles.
//
// `#pragma unroll 1`: the loop mostly runs once, and unrolling would compute its trip count with a 64-bit division.
//
// Bottleneck: memory bandwidth. A tile's row is 16 floats, so a warp moves two segments of 64 bytes, and a batch needs
// one launch per matrix. The next variant puts the batch on the grid's z axis.
#include "../common/numbers.cuh"

// a, b, c: (rows, cols); grid: (ceil(cols / bx), at most 65535 of ceil(rows / by)), block: (bx, by)
__global__ void many_blocks(const float* a, const float* b, float* c, int64 a_row, int64 a_col, int64 b_row,
    int64 b_col, int64 c_row, int64 c_col, int64 rows, int64 cols) {
    const int64 col = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (col >= cols) return;
#pragma unroll 1
    for (int64 row = static_cast<int64>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows;
        row += static_cast<int64>(gridDim.y) * blockDim.y)
        c[row * c_row + col * c_col] = a[row * a_row + col * a_col] + b[row * b_row + col * b_col];
}
