// The second block of a pair signals the first one when it is done. Wrong: the first block does not wait for the
// signal, and may have exited. x: (2, 32), y: (2, 32): y = 2 * x; clusters of 2, block: 32
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void twice(const int* x, int* y) {
    __shared__ uint64 done;
    const int t = threadIdx.x, at = blockIdx.x * 32 + t;
    start(&done, 32);
    cluster_sync();
    if (cluster_rank() == 1) {
        int value = x[at];
#pragma unroll 1
        for (int i = 0; i < 300; ++i) value = value * 3 + i;
        y[at] = 2 * x[at] + (value == 0x7fffffff);
        barrier_arrive_at<true>(&done, 0);  // BUG
    } else {
        y[at] = 2 * x[at];
        if (!WRONG) barrier_wait<true>(&done, 0);
    }
}

__global__ void wrong(const int* x, int* y) {
    twice<true>(x, y);
}

__global__ void right(const int* x, int* y) {
    twice<false>(x, y);
}
