// c[i] = a[i] + b[i], one thread per element.
//
// a, b, c are (n,), contiguous. The grid is n / block rounded up: rounded down, the last elements would not be written.
// A single block is limited to 1024 threads. The test i < n stops the last block's extra threads.
//
// Bottleneck: memory bandwidth, 12 bytes per element. But each load moves only 4 bytes per lane, and each block
// computes only 1024 elements. The float4 variant moves 16 bytes per lane.
#include "../common/numbers.cuh"

// a, b, c: (n,); grid: ceil(n / blockDim.x), any 1-D block
__global__ void vector_add(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int64 n) {
    const int64 i = global_thread();
    if (i < n) c[i] = a[i] + b[i];
}
