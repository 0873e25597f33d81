// C = A + B for one matrix, computed by a single block of 16x16 threads.
//
// A, B, C are (rows, cols) with any strides in elements. A block has at most 1,024 threads: with one element per
// thread, a larger matrix would silently stay unfinished. So the block loops over the matrix in steps of its own
// size.
//
// Bottleneck: only one SM works. The next variant launches one block per 16x16 tile.
#include "../common/numbers.cuh"

// a, b, c: (rows, cols); grid: 1, any 2-D block
__global__ void one_block(const float* a, const float* b, float* c, int64 a_row, int64 a_col, int64 b_row, int64 b_col,
    int64 c_row, int64 c_col, int64 rows, int64 cols) {
    for (int64 row = threadIdx.y; row < rows; row += blockDim.y)
        for (int64 col = threadIdx.x; col < cols; col += blockDim.x)
            c[row * c_row + col * c_col] = a[row * a_row + col * a_col] + b[row * b_row + col * b_col];
}
