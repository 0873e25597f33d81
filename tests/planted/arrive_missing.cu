// A producer warp and a consumer warp; the producer may have nothing to do. Wrong: in that case it does not arrive at
// the barrier, and the consumer waits forever.
// x: (32,), y: (32,): y[t] = x[31 - t], or -1 if `some` is 0; one block of 64
#include "sync.cuh"

__global__ void wrong(const int* x, int* y, int some) {
    __shared__ int tile[32];
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        tile[lane] = -1;
        if (!some) return;
        tile[lane] = x[lane];
        bar_arrive(1, 64);
    } else {
        bar_sync(1, 64);  // BUG
        y[lane] = tile[31 - lane];
    }
}

__global__ void right(const int* x, int* y, int some) {
    __shared__ int tile[32];
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        tile[lane] = some ? x[lane] : -1;
        bar_arrive(1, 64);
    } else {
        bar_sync(1, 64);
        y[lane] = tile[31 - lane];
    }
}
