// A tile, reversed. Wrong: the barrier expects elements, and not bytes.
// x, y: (128,): y = x reversed; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void reverse(const float* x, float* y) {
    __shared__ alignas(128) float tile[128];
    __shared__ uint64 full;
    const int t = threadIdx.x;
    start(&full, 1);
    __syncthreads();
    if (t == 0) {
        barrier_arrive_expect(&full, WRONG ? 128 : sizeof(tile));  // BUG
        bulk_load(tile, x, sizeof(tile), &full);
    }
    barrier_wait(&full, 0);  // BUG
    y[t] = tile[127 - t];
}

__global__ void wrong(const float* x, float* y) {
    reverse<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    reverse<false>(x, y);
}
