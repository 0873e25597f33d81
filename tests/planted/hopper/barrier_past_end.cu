// Sums of neighbours in a tile of a bulk load. Wrong: the last thread stores past the end of the sums, into the barrier
// of the next load. x: (2, 128), y: (2, 128): y[i][j] = x[i][j] + x[i][(j + 1) % 128]; one block of 128
#include "small.cuh"

struct Storage {
    alignas(128) float tile[128];
    float sums[128];
    uint64 full;
};

template <bool WRONG>
__device__ __forceinline__ void neighbours(const float* x, float* y) {
    __shared__ Storage shared;
    const int t = threadIdx.x;
    start(&shared.full, 1);
    __syncthreads();
    for (int i = 0; i < 2; ++i) {
        if (t == 0) {
            barrier_arrive_expect(&shared.full, sizeof(shared.tile));
            bulk_load(shared.tile, x + i * 128, sizeof(shared.tile), &shared.full);
        }
        barrier_wait(&shared.full, i);
        float* const sums = shared.sums + WRONG;
        sums[t] = shared.tile[t] + shared.tile[(t + 1) % 128];  // BUG
        __syncthreads();
        y[i * 128 + t] = sums[t];
        __syncthreads();
    }
}

__global__ void wrong(const float* x, float* y) {
    neighbours<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    neighbours<false>(x, y);
}
