// A tile, reversed twice: through a bulk load, then through shared memory that also holds the barrier. Wrong: the
// barrier is still in use when its memory is overwritten. x, y: (128,): y = x; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void reverse_twice(const float* x, float* y) {
    __shared__ alignas(128) float tile[128];
    __shared__ alignas(8) float other[128];
    uint64* const full = reinterpret_cast<uint64*>(other);
    const int t = threadIdx.x;
    start(full, 1);
    __syncthreads();
    if (t == 0) {
        barrier_arrive_expect(full, sizeof(tile));
        bulk_load(tile, x, sizeof(tile), full);
    }
    barrier_wait(full, 0);
    __syncthreads();
    if (!WRONG && t == 0) barrier_invalidate(full);
    __syncthreads();
    other[t] = tile[127 - t];  // BUG
    __syncthreads();
    y[t] = other[127 - t];
}

__global__ void wrong(const float* x, float* y) {
    reverse_twice<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    reverse_twice<false>(x, y);
}
