// The sum of two tiles that one barrier signals in turn. Wrong: the consumers wait for the first tile when the second
// has arrived, too: the barrier's next phase, for which they then wait, never completes. x: (2, 128), y: (128,): y =
// x[0] + x[1]; one block of 160
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void sum(const float* x, float* y) {
    __shared__ alignas(128) float tiles[2][128];
    __shared__ uint64 full;
    const int t = threadIdx.x - kWarp;
    start(&full, 1);
    __syncthreads();
    if (t == -kWarp)
        for (int i = 0; i < 2; ++i) {
            barrier_arrive_expect(&full, sizeof(tiles[i]));
            bulk_load(tiles[i], x + i * 128, sizeof(tiles[i]), &full);
            barrier_wait(&full, i);
        }
    __syncthreads();
    if (t < 0) return;
    barrier_wait(&full, WRONG ? 0 : 1);  // BUG
    y[t] = tiles[0][t] + tiles[1][t];
}

__global__ void wrong(const float* x, float* y) {
    sum<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    sum<false>(x, y);
}
