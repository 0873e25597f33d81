// Row softmax, one block per row: maximum and sum are combined by a tree in dynamic shared memory.
//
// Parameters as in 01_thread_per_row.cu. Dynamic shared memory: one float per thread. The tree rounds half counts up,
// so any block size works; plain halving would lose every third partial result of 384 threads.
//
// Bottleneck: three reads of the row, and log2(block) barriers, twice. The next variant reads the row twice.
#include "../common/reduce.cuh"
#include "../common/row_strided.cuh"

// x, y: (rows, cols); grid: rows, any 1-D block, shared: 4 * blockDim.x bytes
__global__ void tree_reduce(
    const float* x, float* y, int64 x_row, int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    extern __shared__ float scratch[];
    x += blockIdx.x * x_row;
    y += blockIdx.x * y_row;

    float maximum = -kInfinity;
    for_each_strided(x, x_col, cols, [&](float v) { maximum = fmaxf(maximum, v); });
    maximum = tree_reduce_block(maximum, scratch, Max());

    float sum = 0.0f;
    for_each_strided(x, x_col, cols, [&](float v) { sum += expf(v - maximum); });
    sum = tree_reduce_block(sum, scratch, Sum());

    map_strided(x, x_col, y, y_col, cols, [&](float v) { return expf(v - maximum) / sum; });
}
