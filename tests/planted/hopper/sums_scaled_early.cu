// A product, scaled. Wrong: the sums are scaled before the products are complete.
// a: (64, 64), b: (8, 64), y: (64, 8): y = 2 * a * b^T; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void product(const Element* a, const Element* b, float* y) {
    __shared__ Operands operands;
    put_operands(operands, a, b);
    float sums[4] = {};
    wgmma_fence();
    multiply(sums, wgmma_operand(operands.a), wgmma_operand(operands.b));
    wgmma_commit();
    if (!WRONG) wgmma_wait<0>();
    wgmma_result(sums);
    for (float& sum : sums) sum *= 2.0f;  // BUG
    wgmma_result(sums);
    if (WRONG) wgmma_wait<0>();
    store_sums(y, sums);
}

__global__ void __launch_bounds__(128) wrong(const Element* a, const Element* b, float* y) {
    product<true>(a, b, y);
}

__global__ void __launch_bounds__(128) right(const Element* a, const Element* b, float* y) {
    product<false>(a, b, y);
}
