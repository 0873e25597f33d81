// Row softmax, one thread a row, two passes: maximum and sum together by the online update, then division.
//
// Parameters as in 01_thread_per_row.cu. The input is read twice instead of three times (not once instead of twice:
// the division needs the element again).
//
// Bound by: uncoalesced access still; the update adds an exponential an element. The next rungs give a row to a block.
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
