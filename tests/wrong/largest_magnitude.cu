// Wrong: shifts by the element of largest magnitude, as BLAS isamax finds it. If that element is -1000, the shift is
// -1000 and exp overflows.
#include "../../kernels/common/numbers.cuh"

__global__ void wrong(
    const float* x, float* y, int64 x_row, int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    x += blockIdx.x * x_row;
    y += blockIdx.x * y_row;
    float shift = 0.0f, sum = 0.0f;
    for (int64 c = 0; c < cols; ++c)
        if (fabsf(x[c * x_col]) > fabsf(shift)) shift = x[c * x_col];
    for (int64 c = 0; c < cols; ++c) sum += expf(x[c * x_col] - shift);
    for (int64 c = threadIdx.x; c < cols; c += blockDim.x) y[c * y_col] = expf(x[c * x_col] - shift) / sum;
}
