// Row softmax, one block per row: 16-byte loads and stores, with a scalar head and tail so that any row stride works.
//
// Parameters as in 01_thread_per_row.cu. Dynamic shared memory: one float per thread. Blocks have 512 threads, or 1024
// for rows over 14,080 floats. Columns that are not contiguous use scalar accesses.
//
// Bottleneck: barriers (two trees of log2(block) each) and three reads. The next variant reduces in registers with
// shuffles.
#include "../common/reduce.cuh"
#include "../common/row_vec4.cuh"

// x, y: (rows, cols); grid: rows, any 1-D block, shared: 4 * blockDim.x bytes
__global__ void vec4(
    const float* x, float* y, int64 x_row, int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    extern __shared__ float scratch[];
    x += blockIdx.x * x_row;
    y += blockIdx.x * y_row;

    float maximum = -kInfinity;
    for_each_in_row(x, x_col, cols, [&](float v) { maximum = fmaxf(maximum, v); });
    maximum = tree_reduce_block(maximum, scratch, Max());

    float sum = 0.0f;
    for_each_in_row(x, x_col, cols, [&](float v) { sum += expf(v - maximum); });
    const float scale = 1.0f / tree_reduce_block(sum, scratch, Sum());

    map_row(x, x_col, y, y_col, cols, [&](float v) { return expf(v - maximum) * scale; });
}
