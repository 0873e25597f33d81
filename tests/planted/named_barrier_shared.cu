// Two pairs of warps reverse a row each; the second one scales it too. Wrong: both pairs meet at one named barrier.
// x, y: (2, 64): y[p][t] = (p + 1) * x[p][63 - t]; one block of 128
#include "sync.cuh"

template <int SECOND>
__device__ __forceinline__ void reverse(const int* x, int* y) {
    __shared__ int rows[2][64];
    const int t = threadIdx.x % 64;
    if (threadIdx.x < 64) {
        rows[0][t] = x[t];
        bar_sync(1, 64);
        y[t] = rows[0][63 - t];
    } else {
        rows[1][t] = 2 * x[64 + t];
        bar_sync(SECOND, 64);  // BUG
        y[64 + t] = rows[1][63 - t];
    }
}

__global__ void wrong(const int* x, int* y) {
    reverse<1>(x, y);
}

__global__ void right(const int* x, int* y) {
    reverse<2>(x, y);
}
