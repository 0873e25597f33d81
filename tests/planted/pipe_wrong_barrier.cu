// Two producer warps pass a tile each to two consumer warps, with one named barrier per pair. Wrong: the consumers of
// the second pair wait at the barrier of the first.
// x, y: (2, 32): y[p][t] = x[p][31 - t]; one block of 128, warps 0 and 1 produce, 2 and 3 consume
#include "sync.cuh"

__global__ void wrong(const float* x, float* y) {
    __shared__ float tiles[2][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pair = warp % 2;
    if (warp < 2) {
        tiles[pair][lane] = x[pair * 32 + lane];  // OTHER
        bar_arrive(1 + pair, pair == 0 ? 96 : 32);
    } else {
        bar_sync(1, 96);
        y[pair * 32 + lane] = tiles[pair][31 - lane];  // BUG
    }
}

__global__ void right(const float* x, float* y) {
    __shared__ float tiles[2][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pair = warp % 2;
    if (warp < 2) {
        tiles[pair][lane] = x[pair * 32 + lane];
        bar_arrive(1 + pair, 64);
    } else {
        bar_sync(1 + pair, 64);
        y[pair * 32 + lane] = tiles[pair][31 - lane];
    }
}
