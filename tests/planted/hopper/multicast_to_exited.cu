// The first block of a pair loads a tile into both. Wrong: the second block, which has nothing to do, exits at once.
// x: map of (16, 32), the whole in one box, y: (32,): y = sums of the columns of x; clusters of 2, block: 32
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void column_sums(const CUtensorMap* x, float* y) {
    __shared__ alignas(128) float tile[16][32];
    __shared__ uint64 full;
    const int t = threadIdx.x;
    start(&full, 1);
    cluster_sync();
    if (WRONG && cluster_rank() == 1) return;
    if (t == 0) barrier_arrive_expect(&full, sizeof(tile));
    if (t == 0 && cluster_rank() == 0) tensor_load_to(tile, x, 0, 0, &full, 3);  // BUG
    barrier_wait(&full, 0);
    float sum = 0.0f;
    for (int i = 0; i < 16; ++i) sum += tile[i][t];
    if (cluster_rank() == 0) y[t] = sum;
}

__global__ void wrong(const __grid_constant__ CUtensorMap x, float* y) {
    column_sums<true>(&x, y);
}

__global__ void right(const __grid_constant__ CUtensorMap x, float* y) {
    column_sums<false>(&x, y);
}
