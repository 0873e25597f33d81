// Row softmax, one block per row: each thread runs the online update over its elements, then one tree merges the pairs.
//
// Parameters as in 01_thread_per_row.cu. Dynamic shared memory: two floats per thread. Maximum and sum need one pass,
// not two.
//
// Bottleneck: the number of load instructions, 4 bytes per lane each, and the chain of dependent updates after each
// load. The next variant loads 16 bytes at a time.
#include "../common/online.cuh"
#include "../common/reduce.cuh"
#include "../common/row_strided.cuh"

// x, y: (rows, cols); grid: rows, any 1-D block, shared: 8 * blockDim.x bytes
__global__ void online_fused(
    const float* x, float* y, int64 x_row, int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    extern __shared__ Online pairs[];
    x += blockIdx.x * x_row;
    y += blockIdx.x * y_row;

    Online share = online_empty();
    for_each_strided(x, x_col, cols, [&](float v) { share = online_add(share, v); });
    const Online total = tree_reduce_block(share, pairs, online_merge);

    map_strided(x, x_col, y, y_col, cols, [&](float v) { return expf(v - total.maximum) / total.sum; });
}
