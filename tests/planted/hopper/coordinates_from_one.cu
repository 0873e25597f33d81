// Tiles, doubled and stored by tensor copies. Wrong: they are counted from one, so that the last one is stored outside,
// and is lost.
// x: (64, 32), y: map of (64, 32) with boxes of 16 x 32: y = 2 * x; 4 blocks of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void twice(const float* x, const CUtensorMap* y) {
    __shared__ alignas(128) float tile[512];
    for (int i = threadIdx.x; i < 512; i += 128) tile[i] = 2 * x[blockIdx.x * 512 + i];
    fence_async_shared();
    __syncthreads();
    if (threadIdx.x == 0) {
        tensor_store(y, 0, (WRONG ? blockIdx.x + 1 : blockIdx.x) * 16, tile);  // BUG
        bulk_commit();
        bulk_wait_read<0>();
    }
}

__global__ void wrong(const float* x, const __grid_constant__ CUtensorMap y) {
    twice<true>(x, &y);
}

__global__ void right(const float* x, const __grid_constant__ CUtensorMap y) {
    twice<false>(x, &y);
}
