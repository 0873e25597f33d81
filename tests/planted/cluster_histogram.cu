// A histogram spread over the shared memory of a pair of blocks, half of the bins each. Wrong: remote counts are not
// atomic.
// x: (gridDim.x, 64) of values below 64, y: (gridDim.x / 2, 64): counts per pair; clusters of 2, block: 64
#include <cooperative_groups.h>

template <bool ATOMIC>
__device__ __forceinline__ void count(const int* x, int* y) {
    __shared__ int bins[32];
    const auto cluster = cooperative_groups::this_cluster();
    const int t = threadIdx.x, rank = cluster.block_rank();
    if (t < 32) bins[t] = 0;
    cluster.sync();
    const int value = x[blockIdx.x * 64 + t];
    int* to = cluster.map_shared_rank(bins, value / 32) + value % 32;
    if (ATOMIC) {
        atomicAdd(to, 1);
    } else {
        *to += 1;  // BUG, OTHER
    }
    cluster.sync();
    if (t < 32) y[blockIdx.x / 2 * 64 + rank * 32 + t] = bins[t];
}

__global__ void wrong(const int* x, int* y) {
    count<false>(x, y);
}

__global__ void right(const int* x, int* y) {
    count<true>(x, y);
}
