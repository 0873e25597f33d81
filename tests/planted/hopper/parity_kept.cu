// The sum of tiles that are loaded into one buffer in turn. Wrong: the parity stays 0, so that every second wait
// returns at once. x: (4, 128), y: (128,): y = sum of x; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void sum(const float* x, float* y) {
    __shared__ alignas(128) float tile[128];
    __shared__ uint64 full;
    const int t = threadIdx.x;
    start(&full, 1);
    __syncthreads();
    float value = 0.0f;
    for (int i = 0; i < 4; ++i) {
        if (t == 0) {
            barrier_arrive_expect(&full, sizeof(tile));
            bulk_load(tile, x + i * 128, sizeof(tile), &full);  // OTHER
        }
        barrier_wait(&full, WRONG ? 0 : i % 2);
        value += tile[t];  // BUG
        __syncthreads();   // all threads have read the tile
    }
    y[t] = value;
}

__global__ void wrong(const float* x, float* y) {
    sum<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    sum<false>(x, y);
}
