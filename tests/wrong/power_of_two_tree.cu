// Wrong: the tree halves the block as if it were a power of two; with 96 threads a third of the shares is lost.
#include "../../kernels/common/numbers.cuh"

__global__ void wrong(
    const float* x, float* y, int64 x_row, int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    __shared__ float shares[1024];
    x += blockIdx.x * x_row;
    y += blockIdx.x * y_row;
    float maximum = -kInfinity, share = 0.0f;
    for (int64 c = 0; c < cols; ++c) maximum = fmaxf(maximum, x[c * x_col]);
    for (int64 c = threadIdx.x; c < cols; c += blockDim.x) share += expf(x[c * x_col] - maximum);
    shares[threadIdx.x] = share;
    __syncthreads();
    for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) shares[threadIdx.x] += shares[threadIdx.x + stride];
        __syncthreads();
    }
    for (int64 c = threadIdx.x; c < cols; c += blockDim.x) y[c * y_col] = expf(x[c * x_col] - maximum) / shares[0];
}
