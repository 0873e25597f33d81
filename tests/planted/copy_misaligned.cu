// Copies a window of an array to shared memory by 16-byte asynchronous copies. Wrong: the window may start at any
// element, and the copies need 16-byte alignment.
// x: (n,), y: (128,): y[i] = x[first + i]; one block of 32
#include "sync.cuh"

__global__ void wrong(const float* x, float* y, int first) {
    __shared__ alignas(16) float window[128];
    const int t = threadIdx.x;
    copy_async<16>(&window[4 * t], &x[first + 4 * t]);  // BUG
    copy_async_wait();
    __syncthreads();
    for (int i = t; i < 128; i += 32) y[i] = window[i];
}

__global__ void right(const float* x, float* y, int first) {
    __shared__ alignas(16) float window[132];
    const int t = threadIdx.x, skipped = first % 4;
    copy_async<16>(&window[4 * t], &x[first - skipped + 4 * t]);
    if (t < skipped) copy_async<4>(&window[128 + t], &x[first - skipped + 128 + t]);
    copy_async_wait();
    __syncthreads();
    for (int i = t; i < 128; i += 32) y[i] = window[skipped + i];
}
