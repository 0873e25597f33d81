// Row softmax, one thread per row, two passes: maximum and sum together by the online update, then division.
//
// Parameters as in 01_thread_per_row.cu. The input is read twice instead of three times. One read is not enough, since
// the division needs the element again.
//
// Bottleneck: still uncoalesced access; the update also computes one more exponential per element. The next variants
// use one block per row.
#include "../common/online.cuh"

// x, y: (rows, cols); grid: ceil(rows / blockDim.x), any 1-D block
__global__ void thread_per_row_online(
    const float* x, float* y, int64 x_row, int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    const int64 row = global_thread();
    if (row >= rows) return;
    x += row * x_row;
    y += row * y_row;

    Online total = online_empty();
    for (int64 c = 0; c < cols; ++c) total = online_add(total, x[c * x_col]);
    for (int64 c = 0; c < cols; ++c) y[c * y_col] = expf(x[c * x_col] - total.maximum) / total.sum;
}
