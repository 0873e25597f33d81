// A tile, doubled and stored by a tensor copy. Wrong: the thread that issues the copy executes the fence, and not those
// that have stored.
// x: (8, 32), y: map of (8, 32), the whole in one box: y = 2 * x; one block of 256
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void twice(const float* x, const CUtensorMap* y) {
    __shared__ alignas(128) float tile[256];
    const int t = threadIdx.x;
    tile[t] = 2 * x[t];  // OTHER
    if (!WRONG) fence_async_shared();
    __syncthreads();
    if (t == 0) {
        if (WRONG) fence_async_shared();
        tensor_store(y, 0, 0, tile);  // BUG
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
