// Warps that pass a value on. Wrong: the barrier counts threads, but one lane of each warp arrives.
// x, y: (128,): y = x reversed; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void reverse(const float* x, float* y) {
    __shared__ float tile[128];
    __shared__ uint64 stored;
    const int t = threadIdx.x;
    start(&stored, WRONG ? 128 : 4);
    __syncthreads();
    tile[t] = x[t];
    __syncwarp();
    if (t % kWarp == 0) barrier_arrive(&stored);
    barrier_wait(&stored, 0);  // BUG
    y[t] = tile[127 - t];
}

__global__ void wrong(const float* x, float* y) {
    reverse<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    reverse<false>(x, y);
}
