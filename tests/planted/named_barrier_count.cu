// The first two of four warps synchronise at a named barrier. Wrong: its thread count is that of three warps.
// x, y: (64,): y[t] = x[63 - t]; one block of 128
#include "sync.cuh"

template <int COUNT>
__device__ __forceinline__ void reverse(const int* x, int* y) {
    __shared__ int values[64];
    const int t = threadIdx.x;
    if (t >= 64) return;
    values[t] = x[t];
    bar_sync(1, COUNT);  // BUG
    y[t] = values[63 - t];
}

__global__ void wrong(const int* x, int* y) {
    reverse<96>(x, y);
}

__global__ void right(const int* x, int* y) {
    reverse<64>(x, y);
}
