// c[i] = a[i] + b[i] by a fixed number of blocks that walk the vector in strides of the whole grid.
//
// a, b, c are (n,), contiguous. The grid is a few blocks an SM whatever n is, so blocks are scheduled once and n may
// pass what one grid can hold.
//
// Bound by: memory; each thread waits for its pair of loads before it issues the next, unless the compiler unrolls.
#include "../common/numbers.cuh"

// a, b, c: (n,); any 1-D grid and block
__global__ void vector_add_grid_stride(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int64 n) {
    for (int64 i = global_thread(); i < n; i += global_threads()) c[i] = a[i] + b[i];
}
