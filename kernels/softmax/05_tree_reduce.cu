// Row softmax, one block a row: maximum and sum combined by a tree in dynamic shared memory.
//
// Parameters as in 01_thread_per_row.cu. Dynamic shared memory: one float a thread. Any block size works, since the
// tree rounds its halves up; halving 384 threads as if they were a power of two would lose every third share.
//
// Bound by: three reads of the row and log2(block) barriers, twice. The next rung reads once less.
#include "../common/reduce.cuh"

// x, y: (rows, cols); grid: rows, any 1-D block, shared: 4 * blockDim.x bytes
__global__ void tree_reduce(
    const float* x, float* y, int64 x_row, int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    extern __shared__ float scratch[];
    x += blockIdx.x * x_row;
    y += blockIdx.x * y_row;

    float maximum = -kInfinity;
#pragma unroll 4
    for (int64 c = threadIdx.x; c < cols; c += blockDim.x) maximum = fmaxf(maximum, x[c * x_col]);
    maximum = tree_reduce_block(maximum, scratch, Max());

    float sum = 0.0f;
#pragma unroll 4
    for (int64 c = threadIdx.x; c < cols; c += blockDim.x) sum += expf(x[c * x_col] - maximum);
    sum = tree_reduce_block(sum, scratch, Sum());

#pragma unroll 4
    for (int64 c = threadIdx.x; c < cols; c += blockDim.x) y[c * y_col] = expf(x[c * x_col] - maximum) / sum;
}
