// The sum of two tiles, each with its barrier. Wrong: the second tile is read after a wait for the first one's barrier.
// x: (2, 128), y: (128,): y = x[0] + x[1]; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void sum(const float* x, float* y) {
    __shared__ alignas(128) float tiles[2][128];
    __shared__ uint64 full[2];
    const int t = threadIdx.x;
    start(&full[0], 1);
    start(&full[1], 1);
    __syncthreads();
    if (t == 0)
        for (int i = 0; i < 2; ++i) {
            barrier_arrive_expect(&full[i], sizeof(tiles[i]));
            bulk_load(tiles[i], x + i * 128, sizeof(tiles[i]), &full[i]);  // OTHER
        }
    float value = 0.0f;
    for (int i = 0; i < 2; ++i) {
        barrier_wait(&full[WRONG ? 0 : i], 0);
        value += tiles[i][t];  // BUG
    }
    y[t] = value;
    barrier_wait(&full[1], 0);
}

__global__ void wrong(const float* x, float* y) {
    sum<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    sum<false>(x, y);
}
