// Row softmax, one block per row with a single thread: the baseline of the variants with one block per row.
//
// Parameters as in 01_thread_per_row.cu.
//
// Bottleneck: instruction issue with one active lane of 32, and latency: an SM holds at most 32 such blocks, and each
// issues its loads one after another. The next variant uses 256 threads per row.
#include "../common/numbers.cuh"

// x, y: (rows, cols); grid: rows, block: 1
__global__ void serial_block(
    const float* x, float* y, int64 x_row, int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    if (threadIdx.x != 0) return;
    x += blockIdx.x * x_row;
    y += blockIdx.x * y_row;

    float maximum = -kInfinity;
    for (int64 c = 0; c < cols; ++c) maximum = fmaxf(maximum, x[c * x_col]);
    float sum = 0.0f;
    for (int64 c = 0; c < cols; ++c) sum += expf(x[c * x_col] - maximum);
    for (int64 c = 0; c < cols; ++c) y[c * y_col] = expf(x[c * x_col] - maximum) / sum;
}
