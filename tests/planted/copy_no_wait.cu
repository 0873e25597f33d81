// Reverses each block's values, copied to shared memory asynchronously. Wrong: no thread waits for the copies.
// x, y: (gridDim.x, blockDim.x); shared: 4 * blockDim.x bytes
#include "sync.cuh"

__global__ void wrong(const float* x, float* y) {
    extern __shared__ float tile[];
    const int t = threadIdx.x, first = blockIdx.x * blockDim.x;
    copy_async<4>(&tile[t], &x[first + t]);  // OTHER
    copy_async_commit();
    __syncthreads();
    y[first + t] = tile[blockDim.x - 1 - t];  // BUG
}

__global__ void right(const float* x, float* y) {
    extern __shared__ float tile[];
    const int t = threadIdx.x, first = blockIdx.x * blockDim.x;
    copy_async<4>(&tile[t], &x[first + t]);
    copy_async_commit();
    copy_async_wait_for<0>();
    __syncthreads();
    y[first + t] = tile[blockDim.x - 1 - t];
}
