// Block 0 of each pair reads both blocks' tiles many times through distributed shared memory. Wrong: block 1 exits
// while its shared memory is still being read.
// x: (gridDim.x, 32), y: (gridDim.x / 2,); clusters of 2, block: 32
#include <cooperative_groups.h>

template <bool STAYS>
__device__ __forceinline__ void pair_sum(const int* x, int* y) {
    __shared__ int tile[32];
    const auto cluster = cooperative_groups::this_cluster();
    const int t = threadIdx.x;
    tile[t] = x[blockIdx.x * 32 + t];
    cluster.sync();
    if (cluster.block_rank() == 0) {
        const int* other = cluster.map_shared_rank(tile, 1);
        int sum = 0;
#pragma unroll 1
        for (int i = 0; i < 5000; ++i) sum += tile[(t + i) % 32] ^ other[(t + i) % 32] ^ i;  // BUG
        sum = __reduce_add_sync(0xffffffffu, sum);
        if (t == 0) y[blockIdx.x / 2] = sum;
    }
    if (STAYS) cluster.sync();
}

__global__ void wrong(const int* x, int* y) {
    pair_sum<false>(x, y);
}

__global__ void right(const int* x, int* y) {
    pair_sum<true>(x, y);
}
