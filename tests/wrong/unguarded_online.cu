// Wrong: the online update without a guard. A row that starts with -inf produces exp(-inf - -inf) = NaN.
#include "../../kernels/common/numbers.cuh"

__global__ void wrong(
    const float* x, float* y, int64 x_row, int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    x += blockIdx.x * x_row;
    y += blockIdx.x * y_row;
    float maximum = -kInfinity, sum = 0.0f;
    for (int64 c = 0; c < cols; ++c) {
        const float v = x[c * x_col], higher = fmaxf(maximum, v);
        sum = sum * expf(maximum - higher) + expf(v - higher);
        maximum = higher;
    }
    for (int64 c = threadIdx.x; c < cols; c += blockDim.x) y[c * y_col] = expf(x[c * x_col] - maximum) / sum;
}
