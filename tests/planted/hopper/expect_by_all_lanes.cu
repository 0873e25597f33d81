// A tile of 40 KB. Wrong: each lane of the warp expects the whole tile; the sum is more bytes than a barrier can count.
// x: (10240,), y: (32,): y[t] = sum of the elements t + 32 * i; one block of 32
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void sum(const float* x, float* y) {
    __shared__ alignas(128) float tile[10240];
    __shared__ uint64 full;
    const int t = threadIdx.x;
    start(&full, 1);
    __syncwarp();
    if (WRONG || t == 0) barrier_expect(&full, sizeof(tile));  // BUG
    __syncwarp();
    if (t == 0) {
        barrier_arrive(&full);
        bulk_load(tile, x, sizeof(tile), &full);
    }
    barrier_wait(&full, 0);
    float value = 0.0f;
    for (int k = t; k < 10240; k += 32) value += tile[k];
    y[t] = value;
}

__global__ void wrong(const float* x, float* y) {
    sum<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    sum<false>(x, y);
}
