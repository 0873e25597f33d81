// Differences of neighbouring values, loaded by 16-byte asynchronous copies. Wrong: each thread waits for its own
// copies only; no barrier makes other threads' copies visible.
// x, y: (512,): y[i] = x[(i + 4) % 512] - x[i]; one block of 128
#include "sync.cuh"

constexpr int kBlock = 128;

__global__ void wrong(const float* x, float* y) {
    __shared__ alignas(16) float tile[4 * kBlock];
    const int t = threadIdx.x;
    copy_async<16>(&tile[4 * t], &x[4 * t]);  // OTHER
    copy_async_commit();
    copy_async_wait_for<0>();                                                               // OTHER
    for (int i = 4 * t; i < 4 * t + 4; ++i) y[i] = tile[(i + 4) % (4 * kBlock)] - tile[i];  // BUG
}

__global__ void right(const float* x, float* y) {
    __shared__ alignas(16) float tile[4 * kBlock];
    const int t = threadIdx.x;
    copy_async<16>(&tile[4 * t], &x[4 * t]);
    copy_async_commit();
    copy_async_wait_for<0>();
    __syncthreads();
    for (int i = 4 * t; i < 4 * t + 4; ++i) y[i] = tile[(i + 4) % (4 * kBlock)] - tile[i];
}
