// Clears the last value of each group of four, loaded by asynchronous copies. Wrong: it is cleared while the copy is in
// flight, and the copy may land later.
// x, y: (gridDim.x, 256): y = x with every fourth value 0; block: 64
#include "sync.cuh"

__global__ void wrong(const float* x, float* y) {
    __shared__ alignas(16) float tile[256];
    const int t = threadIdx.x, first = blockIdx.x * 256;
    copy_async<16>(&tile[4 * t], &x[first + 4 * t]);  // OTHER
    copy_async_commit();
    tile[4 * t + 3] = 0.0f;  // BUG
    copy_async_wait_for<0>();
    __syncthreads();
    for (int i = t; i < 256; i += 64) y[first + i] = tile[i];
}

__global__ void right(const float* x, float* y) {
    __shared__ alignas(16) float tile[256];
    const int t = threadIdx.x, first = blockIdx.x * 256;
    copy_async<16>(&tile[4 * t], &x[first + 4 * t]);
    copy_async_commit();
    copy_async_wait_for<0>();
    tile[4 * t + 3] = 0.0f;
    __syncthreads();
    for (int i = t; i < 256; i += 64) y[first + i] = tile[i];
}
