// C = A + B for one matrix, by one block of 16x16 threads that strides over it.
//
// A, B, C are (rows, cols) with any strides in elements. One block has at most 1,024 threads: written as one element a
// thread it leaves every matrix past that unfinished, without an error. Here the block goes on in strides of its own
// size until the matrix is done.
//
// Bound by: one multiprocessor of all. The next rung gives every 16x16 tile a block.
#include "../common/numbers.cuh"

// a, b, c: (rows, cols); grid: 1, any 2-D block
__global__ void one_block(const float* a, const float* b, float* c, int64 a_row, int64 a_col, int64 b_row, int64 b_col,
    int64 c_row, int64 c_col, int64 rows, int64 cols) {
    for (int64 row = threadIdx.y; row < rows; row += blockDim.y)
        for (int64 col = threadIdx.x; col < cols; col += blockDim.x)
            c[row * c_row + col * c_col] = a[row * a_row + col * a_col] + b[row * b_row + col * b_col];
}
