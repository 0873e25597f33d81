// The largest value of a block: warps reduce by shuffles, the first warp reduces their results. Wrong: there is no
// barrier before it reads them.
// x: (gridDim.x, 256), y: (gridDim.x,); block: 256
#include "reduce.cuh"

__global__ void wrong(const float* x, float* y) {
    __shared__ float best[8];
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    if (threadIdx.x < 8) best[threadIdx.x] = -kInfinity;
    __syncthreads();
    const float value = lanes_reduce<kWarp>(x[blockIdx.x * 256 + threadIdx.x], Max());
    if (lane == 0) best[warp] = value;  // OTHER
    if (warp == 0) {
        const float all = lanes_reduce<kWarp>(best[lane % 8], Max());  // BUG
        if (lane == 0) y[blockIdx.x] = all;
    }
}

__global__ void right(const float* x, float* y) {
    __shared__ float best[8];
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    if (threadIdx.x < 8) best[threadIdx.x] = -kInfinity;
    __syncthreads();
    const float value = lanes_reduce<kWarp>(x[blockIdx.x * 256 + threadIdx.x], Max());
    if (lane == 0) best[warp] = value;
    __syncthreads();
    if (warp == 0) {
        const float all = lanes_reduce<kWarp>(best[lane % 8], Max());
        if (lane == 0) y[blockIdx.x] = all;
    }
}
