// The sum of three tiles that one barrier signals in turn. Wrong: after a pause in which the second and the third tile
// have arrived, the consumers wait for each of them; the barrier's fourth phase, for which they then wait, never
// completes. x: (3, 128), y: (128,): y = sum of x; one block of 160
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void sum(const float* x, float* y) {
    __shared__ alignas(128) float tiles[3][128];
    __shared__ uint64 full;
    const int t = threadIdx.x - kWarp;
    start(&full, 1);
    __syncthreads();
    const auto load = [&](int i) {
        barrier_arrive_expect(&full, sizeof(tiles[i]));
        bulk_load(tiles[i], x + i * 128, sizeof(tiles[i]), &full);
        barrier_wait(&full, i % 2);
    };
    if (t == -kWarp) load(0);
    float value = 0.0f;
    if (t >= 0) {
        barrier_wait(&full, 0);
        value = tiles[0][t];
    }
    __syncthreads();
    if (t == -kWarp) load(1), load(2);
    __syncthreads();
    if (t < 0) return;
    if (WRONG) barrier_wait(&full, 1);  // BUG
    barrier_wait(&full, 0);
    y[t] = value + tiles[1][t] + tiles[2][t];
}

__global__ void wrong(const float* x, float* y) {
    sum<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    sum<false>(x, y);
}
