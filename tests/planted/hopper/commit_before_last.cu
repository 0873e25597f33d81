// A product, 16 columns at a time. Wrong: the commit is before the last product, which no group contains.
// a: (64, 64), b: (8, 64), y: (64, 8): y = a * b^T; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void product(const Element* a, const Element* b, float* y) {
    __shared__ Operands operands;
    put_operands(operands, a, b);
    float sums[4] = {};
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDeep / 16; ++i) {
        if (WRONG && i == kDeep / 16 - 1) wgmma_commit();
        multiply_16(sums, wgmma_operand(operands.a) + 2 * i, wgmma_operand(operands.b) + 2 * i);
    }
    if (!WRONG) wgmma_commit();
    wgmma_wait<0>();  // BUG
    wgmma_result(sums);
    store_sums(y, sums);  // BUG
}

__global__ void __launch_bounds__(128) wrong(const Element* a, const Element* b, float* y) {
    product<true>(a, b, y);
}

__global__ void __launch_bounds__(128) right(const Element* a, const Element* b, float* y) {
    product<false>(a, b, y);
}
