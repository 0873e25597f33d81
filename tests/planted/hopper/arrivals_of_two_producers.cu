// The sum of two tiles, which two warps load. Wrong: the barrier counts one arrival.
// x: (2, 128), y: (128,): y = x[0] + x[1]; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void sum(const float* x, float* y) {
    __shared__ alignas(128) float tiles[2][128];
    __shared__ uint64 full;
    const int t = threadIdx.x, warp = t / kWarp;
    start(&full, WRONG ? 1 : 2);
    __syncthreads();
    if (warp < 2 && t % kWarp == 0) {
        barrier_arrive_expect(&full, sizeof(tiles[warp]));  // BUG
        bulk_load(tiles[warp], x + warp * 128, sizeof(tiles[warp]), &full);
    }
    barrier_wait(&full, 0);
    y[t] = tiles[0][t] + tiles[1][t];
}

__global__ void wrong(const float* x, float* y) {
    sum<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    sum<false>(x, y);
}
