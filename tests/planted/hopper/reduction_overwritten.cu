// Blocks add their tiles to one result by bulk reductions. Wrong: the tile is cleared before the reduction has read it.
// x: (4, 2, 128), y: (128,): y = sum of x; 4 blocks of 128
#include "small.cuh"

__device__ __forceinline__ void bulk_add(float* global, const float* shared, unsigned bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
        "r"(shared_address(shared)), "r"(bytes)
        : "memory");
}

template <bool WRONG>
__device__ __forceinline__ void sum(const float* x, float* y) {
    __shared__ alignas(128) float tile[128];
    const int t = threadIdx.x;
    for (int i = 0; i < 2; ++i) {
        tile[t] = x[(blockIdx.x * 2 + i) * 128 + t];  // BUG
        fence_async_shared();
        __syncthreads();
        if (t == 0) {
            bulk_add(y, tile, sizeof(tile));  // OTHER
            bulk_commit();
            if (!WRONG) bulk_wait_read<0>();
        }
        __syncthreads();
    }
    if (t == 0) bulk_wait_read<0>();
}

__global__ void wrong(const float* x, float* y) {
    sum<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    sum<false>(x, y);
}
