// Warps that pass a value on. Wrong: the other warps use the barrier without waiting until it is initialised.
// x, y: (128,): y = x reversed; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void reverse(const float* x, float* y) {
    __shared__ float tile[128];
    __shared__ uint64 stored;
    const int t = threadIdx.x;
    start(&stored, 128);
    if (!WRONG) __syncthreads();
    tile[t] = x[t];
    barrier_arrive(&stored);  // BUG
    barrier_wait(&stored, 0);
    y[t] = tile[127 - t];
}

__global__ void wrong(const float* x, float* y) {
    reverse<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    reverse<false>(x, y);
}
