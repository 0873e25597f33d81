// Mirrors groups of eight values through shared memory, one tile of eight threads per group. Wrong: the tile is not
// synchronized between the store and the read.
// x, y: (gridDim.x, 64); block: 64
#include <cooperative_groups.h>

template <bool SYNC>
__device__ __forceinline__ void mirror(const int* x, int* y) {
    __shared__ int values[64];
    const auto tile = cooperative_groups::tiled_partition<8>(cooperative_groups::this_thread_block());
    const int t = threadIdx.x, first = t - tile.thread_rank();
    values[t] = x[blockIdx.x * 64 + t];  // OTHER
    if (SYNC) tile.sync();
    y[blockIdx.x * 64 + t] = values[first + 7 - tile.thread_rank()];  // BUG
}

__global__ void wrong(const int* x, int* y) {
    mirror<false>(x, y);
}

__global__ void right(const int* x, int* y) {
    mirror<true>(x, y);
}
