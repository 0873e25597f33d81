// A product. Wrong: the tile of A begins 256 bytes after a boundary of 1024 bytes, so the swizzle's pattern is
// another one. a: (64, 64), b: (8, 64), y: (64, 8): y = a * b^T; one block of 128, shared: 10240 bytes
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void product(const Element* a, const Element* b, float* y) {
    extern __shared__ __align__(1024) Element memory[];
    Element* const tile_b = memory;
    Element* const tile_a = memory + kRowsB * kDeep + (WRONG ? 128 : 0);
    put_rows(tile_a, a, kRowsA);
    put_rows(tile_b, b, kRowsB);
    fence_async_shared();
    __syncthreads();
    float sums[4] = {};
    wgmma_fence();
    multiply(sums, wgmma_operand(tile_a), wgmma_operand(tile_b));  // BUG
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_result(sums);
    store_sums(y, sums);
}

__global__ void __launch_bounds__(128) wrong(const Element* a, const Element* b, float* y) {
    product<true>(a, b, y);
}

__global__ void __launch_bounds__(128) right(const Element* a, const Element* b, float* y) {
    product<false>(a, b, y);
}
