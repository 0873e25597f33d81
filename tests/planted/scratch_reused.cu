// Two block-wide sums, first of the values, then of their distances from the mean. Wrong: both use the same scratch
// area, and the second overwrites it while slower warps still read the first.
// x: (gridDim.x, 128), y: (gridDim.x, 2): the sum, and the sum of |x - mean|; block: 128
#include "reduce.cuh"

__device__ __forceinline__ float block_sum(float value, float* scratch) {
    const int lane = threadIdx.x % kWarp;
    value = lanes_reduce<kWarp>(value, Sum());
    if (lane == 0) scratch[threadIdx.x / kWarp] = value;  // BUG
    __syncthreads();
    return lanes_reduce<kWarp>(lane < 4 ? scratch[lane] : 0.0f, Sum());  // OTHER
}

__global__ void wrong(const float* x, float* y) {
    __shared__ float scratch[4];
    const float value = x[blockIdx.x * 128 + threadIdx.x];
    const float sum = block_sum(value, scratch);
    const float spread = block_sum(fabsf(value - sum / 128.0f), scratch);
    if (threadIdx.x == 0) y[2 * blockIdx.x] = sum, y[2 * blockIdx.x + 1] = spread;
}

__global__ void right(const float* x, float* y) {
    __shared__ float scratch[2][4];
    const float value = x[blockIdx.x * 128 + threadIdx.x];
    const float sum = block_sum(value, scratch[0]);
    const float spread = block_sum(fabsf(value - sum / 128.0f), scratch[1]);
    if (threadIdx.x == 0) y[2 * blockIdx.x] = sum, y[2 * blockIdx.x + 1] = spread;
}
