// Two phases of a cooperative grid. Wrong: blocks without work return before the grid's barrier.
// x: (n,), y, z: (gridDim.x * blockDim.x,)
#include <cooperative_groups.h>

template <bool RIGHT>
__device__ __forceinline__ void body(const int* x, int* y, int* z, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    if (!RIGHT && blockIdx.x * blockDim.x >= n) return;
    y[i] = i < n ? x[i] : 0;
    cooperative_groups::this_grid().sync();  // BUG
    z[i] = y[threads - 1 - i];
}

__global__ void wrong(const int* x, int* y, int* z, int n) {
    body<false>(x, y, z, n);
}

__global__ void right(const int* x, int* y, int* z, int n) {
    body<true>(x, y, z, n);
}
