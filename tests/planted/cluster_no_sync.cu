// Each block of a pair reads the other's tile through distributed shared memory. Wrong: there is no cluster barrier
// between the store and the read.
// x, y: (gridDim.x, 32): y = x of the other block of the pair, reversed; clusters of 2, block: 32
#include <cooperative_groups.h>

__global__ void wrong(const int* x, int* y) {
    __shared__ int tile[32];
    const auto cluster = cooperative_groups::this_cluster();
    const int t = threadIdx.x;
    tile[t] = 0;
    cluster.sync();
    tile[t] = x[blockIdx.x * 32 + t];  // OTHER
    __syncthreads();
    const int* other = cluster.map_shared_rank(tile, cluster.block_rank() ^ 1);
    y[blockIdx.x * 32 + t] = other[31 - t];  // BUG
    cluster.sync();
}

__global__ void right(const int* x, int* y) {
    __shared__ int tile[32];
    const auto cluster = cooperative_groups::this_cluster();
    const int t = threadIdx.x;
    tile[t] = 0;
    cluster.sync();
    tile[t] = x[blockIdx.x * 32 + t];
    cluster.sync();
    const int* other = cluster.map_shared_rank(tile, cluster.block_rank() ^ 1);
    y[blockIdx.x * 32 + t] = other[31 - t];
    cluster.sync();
}
