// Row softmax, one thread per row, three passes: maximum, sum of exponentials, division.
//
// x is (rows, cols), read at x[r * x_row + c * x_col]; y is (rows, cols), written at y[r * y_row + c * y_col]. Strides
// are in floats, any sign or zero for x. They are 64-bit: row * x_row exceeds 2^31 long before a GPU's memory is full.
// y may be x. Every variant of this family has these parameters.
//
// Bottleneck: uncoalesced access. Neighbouring threads are a whole row apart, so each load of a warp touches 32 sectors
// and uses 4 bytes of each. The next variant reads the row twice instead of three times.
//
// No variant declares x __restrict__: in place, x and y are the same memory.
#include "../common/numbers.cuh"

// x, y: (rows, cols); grid: ceil(rows / blockDim.x), any 1-D block
__global__ void thread_per_row(
    const float* x, float* y, int64 x_row, int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    const int64 row = global_thread();
    if (row >= rows) return;
    x += row * x_row;
    y += row * y_row;

    float maximum = -kInfinity;
    for (int64 c = 0; c < cols; ++c) maximum = fmaxf(maximum, x[c * x_col]);
    float sum = 0.0f;
    for (int64 c = 0; c < cols; ++c) sum += expf(x[c * x_col] - maximum);
    for (int64 c = 0; c < cols; ++c) y[c * y_col] = expf(x[c * x_col] - maximum) / sum;
}
