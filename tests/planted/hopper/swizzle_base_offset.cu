// A product. Wrong: the descriptor has a base offset, although the tile is 1024-byte aligned.
// a: (64, 64), b: (8, 64), y: (64, 8): y = a * b^T; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void product(const Element* a, const Element* b, float* y) {
    __shared__ Operands operands;
    put_operands(operands, a, b);
    float sums[4] = {};
    const uint64 offset = uint64(WRONG ? 2 : 0) << 49;
    wgmma_fence();
    multiply(sums, wgmma_operand(operands.a) | offset, wgmma_operand(operands.b));  // BUG
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
