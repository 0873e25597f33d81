// Each block of a cluster reads the tile of the next block. Wrong: the last block's next is past the cluster's end.
// x, y: (gridDim.x, 32), clusters of 2, block: 32
#include <cooperative_groups.h>

template <bool WRAP>
__device__ __forceinline__ void next_tile(const int* x, int* y) {
    __shared__ int tile[32];
    const auto cluster = cooperative_groups::this_cluster();
    const int t = threadIdx.x;
    tile[t] = x[blockIdx.x * 32 + t];
    cluster.sync();
    const unsigned next = cluster.block_rank() + 1;
    const int* other = cluster.map_shared_rank(tile, WRAP ? next % cluster.num_blocks() : next);
    y[blockIdx.x * 32 + t] = other[t];  // BUG
    cluster.sync();
}

__global__ void wrong(const int* x, int* y) {
    next_tile<false>(x, y);
}

__global__ void right(const int* x, int* y) {
    next_tile<true>(x, y);
}
