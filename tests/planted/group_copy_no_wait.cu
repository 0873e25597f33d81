// Reverses each block's values, which memcpy_async of a cooperative group copies. Wrong: the group's wait is missing.
// x, y: (gridDim.x, 64), block: 64
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>

template <bool WAIT>
__device__ __forceinline__ void reverse(const int* x, int* y) {
    __shared__ alignas(16) int tile[64];
    const auto block = cooperative_groups::this_thread_block();
    cooperative_groups::memcpy_async(block, tile, x + blockIdx.x * 64, sizeof tile);
    if (WAIT)
        cooperative_groups::wait(block);
    else
        block.sync();
    y[blockIdx.x * 64 + threadIdx.x] = tile[63 - threadIdx.x];  // BUG
}

__global__ void wrong(const int* x, int* y) {
    reverse<false>(x, y);
}

__global__ void right(const int* x, int* y) {
    reverse<true>(x, y);
}
