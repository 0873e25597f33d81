// Scales an array by the largest of the blocks' maxima. Wrong: every block reads all maxima after a block barrier,
// which does not wait for other blocks.
// x, y: (n,), maxima: (gridDim.x,); block: 64. In the correct kernel each block reads the whole array.
#include "reduce.cuh"

__global__ void wrong(const float* x, float* maxima, float* y, int n) {
    __shared__ float scratch[64];
    const int i = blockIdx.x * 64 + threadIdx.x;
    const float value = i < n ? x[i] : 0.0f;
    const float mine = tree_reduce_block(value, scratch, Max());
    if (threadIdx.x == 0) maxima[blockIdx.x] = mine;  // OTHER
    __syncthreads();
    float largest = 0.0f;
    for (int b = 0; b < gridDim.x; ++b) largest = fmaxf(largest, maxima[b]);  // BUG
    if (i < n) y[i] = value / largest;
}

__global__ void right(const float* x, float* maxima, float* y, int n) {
    __shared__ float scratch[64];
    const int i = blockIdx.x * 64 + threadIdx.x;
    float largest = 0.0f;
    for (int j = threadIdx.x; j < n; j += 64) largest = fmaxf(largest, x[j]);
    largest = tree_reduce_block(largest, scratch, Max());
    if (threadIdx.x == 0) maxima[blockIdx.x] = largest;
    if (i < n) y[i] = x[i] / largest;
}
