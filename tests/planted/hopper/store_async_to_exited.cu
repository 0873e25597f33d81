// The blocks of a cluster send their sums to the first one. Wrong: it does not wait for them, and exits while the last
// ones are on their way.
// x: (4, 32), y: (1,): y = sum of x; clusters of 4, block: 32
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void sum_all(const float* x, float* y) {
    __shared__ alignas(16) Online parts[4];
    __shared__ uint64 received;
    const int t = threadIdx.x;
    start(&received, 1);
    cluster_sync();
    float sum = x[blockIdx.x * 32 + t];
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(kAllLanes, sum, i);
    if (t == 0 && cluster_rank() == 0) {
        barrier_arrive_expect(&received, sizeof(parts));
        if (WRONG) return;
    }
    if (t == 0) store_async(&parts[cluster_rank()], {0.0f, sum}, &received, 0);  // BUG
    if (WRONG || t != 0 || cluster_rank() != 0) return;
    barrier_wait<true>(&received, 0);
    y[0] = parts[0].sum + parts[1].sum + parts[2].sum + parts[3].sum;
}

__global__ void wrong(const float* x, float* y) {
    sum_all<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    sum_all<false>(x, y);
}
