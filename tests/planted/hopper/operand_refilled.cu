// The sum of two products, whose second factors are loaded into one tile in turn. Wrong: the second load starts before
// the first product has read the tile.
// a: (64, 64), b: map of (16, 64) with boxes of 8 x 64 and 128-byte swizzle, y: (64, 8): y = a * (b[:8] + b[8:])^T; one
// block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void product(const Element* a, const CUtensorMap* b, float* y) {
    __shared__ Operands operands;
    __shared__ uint64 full;
    start(&full, 1);
    put_rows(operands.a, a, kRowsA);
    fence_async_shared();
    __syncthreads();
    float sums[4] = {};
    for (int i = 0; i < 2; ++i) {
        if (threadIdx.x == 0) {
            barrier_arrive_expect(&full, sizeof(operands.b));
            tensor_load(operands.b, b, 0, i * kRowsB, &full);  // BUG
        }
        barrier_wait(&full, i % 2);
        wgmma_fence();
        multiply(sums, wgmma_operand(operands.a), wgmma_operand(operands.b));  // OTHER
        wgmma_commit();
        if (!WRONG) wgmma_wait<0>();
        __syncthreads();
    }
    wgmma_wait<0>();
    wgmma_result(sums);
    store_sums(y, sums);
}

__global__ void __launch_bounds__(128) wrong(const Element* a, const __grid_constant__ CUtensorMap b, float* y) {
    product<true>(a, &b, y);
}

__global__ void __launch_bounds__(128) right(const Element* a, const __grid_constant__ CUtensorMap b, float* y) {
    product<false>(a, &b, y);
}
