// Tiles, doubled in one buffer and stored by bulk copies. Wrong: the buffer is overwritten while a copy may still read
// it.
// x, y: (3, 128): y = 2 * x; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void twice(const float* x, float* y) {
    __shared__ alignas(128) float tile[128];
    const int t = threadIdx.x;
    for (int i = 0; i < 3; ++i) {
        if (!WRONG && t == 0) bulk_wait_read<0>();
        __syncthreads();
        tile[t] = 2 * x[i * 128 + t];  // BUG
        fence_async_shared();
        __syncthreads();
        if (t == 0) {
            bulk_store(y + i * 128, tile, sizeof(tile));  // OTHER
            bulk_commit();
        }
    }
    if (t == 0) bulk_wait_read<0>();
}

__global__ void wrong(const float* x, float* y) {
    twice<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    twice<false>(x, y);
}
