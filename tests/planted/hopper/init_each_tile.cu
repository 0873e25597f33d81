// The sum of tiles that are loaded into one buffer in turn; the barrier is initialised for each. Wrong: without ending
// the one before. x: (3, 128), y: (128,): y = sum of x; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void sum(const float* x, float* y) {
    __shared__ alignas(128) float tile[128];
    __shared__ uint64 full;
    const int t = threadIdx.x;
    float value = 0.0f;
    for (int i = 0; i < 3; ++i) {
        if (!WRONG && i > 0 && t == 0) barrier_invalidate(&full);
        start(&full, 1);  // BUG
        __syncthreads();
        if (t == 0) {
            barrier_arrive_expect(&full, sizeof(tile));
            bulk_load(tile, x + i * 128, sizeof(tile), &full);
        }
        barrier_wait(&full, 0);
        value += tile[t];
        __syncthreads();
    }
    y[t] = value;
}

__global__ void wrong(const float* x, float* y) {
    sum<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    sum<false>(x, y);
}
