// A pair of blocks, each of which sends its sum to the other one. Wrong: a barrier of the block after the
// initialisation, and not one of the cluster. x: (2, 32), y: (2,): y[i] = sum of the other block's row; clusters of 2,
// block: 32
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void exchange(const float* x, float* y) {
    __shared__ alignas(16) Online theirs;
    __shared__ uint64 received;
    const int t = threadIdx.x;
    start(&received, 1);
    if (WRONG)
        __syncthreads();
    else
        cluster_sync();
    float sum = x[blockIdx.x * 32 + t];
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(kAllLanes, sum, i);
    if (t == 0) {
        barrier_arrive_expect(&received, sizeof(Online));
        store_async(&theirs, {0.0f, sum}, &received, cluster_rank() ^ 1);  // BUG
        barrier_wait<true>(&received, 0);
        y[blockIdx.x] = theirs.sum;
    }
    cluster_sync();
}

__global__ void wrong(const float* x, float* y) {
    exchange<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    exchange<false>(x, y);
}
