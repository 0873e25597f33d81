// Blocks of a pair swap tiles. The cluster's barrier is split into arrive and wait, with other work between them.
// Wrong: the second round arrives before it has waited for the first.
// x: (gridDim.x, 32), y: (gridDim.x, 32): x of the other block of the pair, plus |x|; clusters of 2, block: 32
#include <cooperative_groups.h>

template <bool WAITS>
__device__ __forceinline__ void swap_tiles(const int* x, int* y) {
    __shared__ int tile[32];
    const auto cluster = cooperative_groups::this_cluster();
    const int t = threadIdx.x, value = x[blockIdx.x * 32 + t];
    tile[t] = value;
    cluster.barrier_arrive();
    const int own = value * value / max(abs(value), 1);
    if (WAITS) {
        cluster.barrier_wait();
        y[blockIdx.x * 32 + t] = cluster.map_shared_rank(tile, cluster.block_rank() ^ 1)[t] + abs(own);
    }
    cluster.barrier_arrive();  // BUG
    cluster.barrier_wait();
}

__global__ void wrong(const int* x, int* y) {
    swap_tiles<false>(x, y);
}

__global__ void right(const int* x, int* y) {
    swap_tiles<true>(x, y);
}
