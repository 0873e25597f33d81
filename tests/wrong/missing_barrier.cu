// Wrong: the last thread sums the shares while the others already read the total. A barrier is missing after the sum.
#include "../../kernels/common/numbers.cuh"

__global__ void wrong(
    const float* x, float* y, int64 x_row, int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    __shared__ float shares[1024], total;
    x += blockIdx.x * x_row;
    y += blockIdx.x * y_row;
    float maximum = -kInfinity, share = 0.0f;
    for (int64 c = 0; c < cols; ++c) maximum = fmaxf(maximum, x[c * x_col]);
    for (int64 c = threadIdx.x; c < cols; c += blockDim.x) share += expf(x[c * x_col] - maximum);
    shares[threadIdx.x] = share;
    if (threadIdx.x == 0) total = 1.0f;
    __syncthreads();
    float sum;
    if (threadIdx.x + 1 < blockDim.x) {
        sum = *static_cast<volatile float*>(&total);
    } else {
        sum = 0.0f;
        for (unsigned i = 0; i < blockDim.x; ++i) sum += shares[i];
        total = sum;
    }
    for (int64 c = threadIdx.x; c < cols; c += blockDim.x) y[c * y_col] = expf(x[c * x_col] - maximum) / sum;
}
