// Row softmax, one block per row: 16-byte accesses; reductions use warp shuffles and one barrier each.
//
// Parameters as in 01_thread_per_row.cu. The block is a multiple of 32.
//
// Bottleneck: three reads of each element; rows larger than L1 come from L2 or DRAM each time. The next variant reads
// once.
#include "../common/reduce.cuh"
#include "../common/row_vec4.cuh"

// x, y: (rows, cols); grid: rows, block: a multiple of 32
__global__ void warp_shuffle(
    const float* x, float* y, int64 x_row, int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    __shared__ float maxima[kWarp], sums[kWarp];
    x += blockIdx.x * x_row;
    y += blockIdx.x * y_row;

    float maximum = -kInfinity;
    for_each_in_row(x, x_col, cols, [&](float v) { maximum = fmaxf(maximum, v); });
    maximum = warps_reduce_block(maximum, maxima, Max());

    float sum = 0.0f;
    for_each_in_row(x, x_col, cols, [&](float v) { sum += expf(v - maximum); });
    const float scale = 1.0f / warps_reduce_block(sum, sums, Sum());

    map_row(x, x_col, y, y_col, cols, [&](float v) { return expf(v - maximum) * scale; });
}
