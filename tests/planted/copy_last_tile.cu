// Row sums of a tile copied in two halves, each its own group. Wrong: the loop that drains the pipeline waits for the
// first group twice and never for the second.
// x: (2, 64), y: (64,): y[t] = x[0][t] + x[1][63 - t]; one block of 64
#include "sync.cuh"

__global__ void wrong(const float* x, float* y) {
    __shared__ float halves[2][64];
    const int t = threadIdx.x;
    for (int i = 0; i < 2; ++i) {
        copy_async<4>(&halves[i][t], &x[i * 64 + t]);  // OTHER
        copy_async_commit();
    }
    copy_async_wait_for<1>();
    __syncthreads();
    const float first = halves[0][t];
    copy_async_wait_for<1>();
    __syncthreads();
    y[t] = first + halves[1][63 - t];  // BUG
}

__global__ void right(const float* x, float* y) {
    __shared__ float halves[2][64];
    const int t = threadIdx.x;
    for (int i = 0; i < 2; ++i) {
        copy_async<4>(&halves[i][t], &x[i * 64 + t]);
        copy_async_commit();
    }
    copy_async_wait_for<1>();
    __syncthreads();
    const float first = halves[0][t];
    copy_async_wait_for<0>();
    __syncthreads();
    y[t] = first + halves[1][63 - t];
}
