// Per group of 64 threads: the reversed values, minus the group's sum, plus the running sum, by cooperative-group tiles
// of two warps. Wrong: the tile is not synchronized between the store and the read.
// x, y: (gridDim.x, 128); block: 128
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;

template <bool SYNC>
__device__ __forceinline__ void centre(const int* x, int* y) {
    __shared__ cg::block_tile_memory<128> memory;
    __shared__ int values[128];
    const auto tile = cg::tiled_partition<64>(cg::this_thread_block(memory));
    const int t = threadIdx.x, first = t - tile.thread_rank(), value = x[blockIdx.x * 128 + t];
    const int sum = cg::reduce(tile, value, cg::plus<int>());
    const int running = cg::inclusive_scan(tile, value);
    values[t] = value;  // OTHER
    if (SYNC) tile.sync();
    y[blockIdx.x * 128 + t] = values[first + 63 - tile.thread_rank()] - sum + running;  // BUG
}

__global__ void wrong(const int* x, int* y) {
    centre<false>(x, y);
}

__global__ void right(const int* x, int* y) {
    centre<true>(x, y);
}
