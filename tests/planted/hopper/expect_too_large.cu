// The sum of 64 tiles of 16 KB, loaded into one buffer in turn. Wrong: the barrier expects all of them at once,
// more bytes than it can count. x: (64, 4096), y: (128,): y[t] = sum of the elements t + 128 * i; one block of
// 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void sum(const float* x, float* y, int tiles) {
    __shared__ alignas(128) float tile[4096];
    __shared__ uint64 full;
    const int t = threadIdx.x;
    start(&full, 1);
    __syncthreads();
    if (WRONG && t == 0) barrier_arrive_expect(&full, tiles * sizeof(tile));  // BUG
    float value = 0.0f;
    for (int i = 0; i < tiles; ++i) {
        if (t == 0) {
            if (!WRONG) barrier_arrive_expect(&full, sizeof(tile));
            bulk_load(tile, x + i * 4096, sizeof(tile), &full);
        }
        barrier_wait(&full, WRONG ? 0 : i % 2);
        for (int k = t; k < 4096; k += 128) value += tile[k];
        __syncthreads();
    }
    y[t] = value;
}

__global__ void wrong(const float* x, float* y, int tiles) {
    sum<true>(x, y, tiles);
}

__global__ void right(const float* x, float* y, int tiles) {
    sum<false>(x, y, tiles);
}
