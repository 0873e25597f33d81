// A tile, doubled and stored by a bulk copy. Wrong: no fence orders the ordinary stores before the reads of the async
// proxy.
// x, y: (128,): y = 2 * x; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void twice(const float* x, float* y) {
    __shared__ alignas(128) float tile[128];
    const int t = threadIdx.x;
    tile[t] = 2 * x[t];  // OTHER
    if (!WRONG) fence_async_shared();
    __syncthreads();
    if (t == 0) {
        bulk_store(y, tile, sizeof(tile));  // BUG
        bulk_commit();
        bulk_wait_read<0>();
    }
}

__global__ void wrong(const float* x, float* y) {
    twice<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    twice<false>(x, y);
}
