// c[i] = a[i] + b[i] with a grid-stride loop: a fixed number of blocks walks the whole vector.
//
// a, b, c are (n,), contiguous. The grid is a few blocks per SM for any n: blocks are scheduled once, and n may be
// larger than a grid can be.
//
// Bottleneck: memory latency. Each thread waits for its two loads before it issues the next, unless the compiler
// unrolls.
#include "../common/numbers.cuh"

// a, b, c: (n,); any 1-D grid and block
__global__ void vector_add_grid_stride(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int64 n) {
    for (int64 i = global_thread(); i < n; i += global_threads()) c[i] = a[i] + b[i];
}
