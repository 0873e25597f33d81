// Sums pairs of neighbouring tiles, loaded by the pipeline primitives. Wrong: waits for all stages except the last,
// then uses the last.
// x: (tiles + 1, 64), y: (tiles, 64): y[i] = x[i] + x[i + 1] reversed; one block of 64
#include <cuda_pipeline_primitives.h>

template <int PENDING>
__device__ __forceinline__ void pairs(const float* x, float* y, int tiles) {
    __shared__ float stages[2][64];
    const int t = threadIdx.x;
    __pipeline_memcpy_async(&stages[0][t], &x[t], sizeof(float));
    __pipeline_commit();
    for (int i = 0; i < tiles; ++i) {
        __pipeline_memcpy_async(&stages[(i + 1) % 2][t], &x[(i + 1) * 64 + t], sizeof(float));  // OTHER
        __pipeline_commit();
        __pipeline_wait_prior(PENDING);
        __syncthreads();
        y[i * 64 + t] = stages[i % 2][t] + stages[(i + 1) % 2][63 - t];  // BUG
        __syncthreads();
    }
}

__global__ void wrong(const float* x, float* y, int tiles) {
    pairs<1>(x, y, tiles);
}

__global__ void right(const float* x, float* y, int tiles) {
    pairs<0>(x, y, tiles);
}
