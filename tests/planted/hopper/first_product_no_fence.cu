// A product. Wrong: no wgmma.fence orders the sums' initial values before the first product.
// a: (64, 64), b: (8, 64), c: (64, 8), y: (64, 8): y = a * b^T + c; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void product(const Element* a, const Element* b, const float* c, float* y) {
    __shared__ Operands operands;
    put_operands(operands, a, b);
    const int lane = threadIdx.x % kWarp;
    const float* const from = c + (threadIdx.x / kWarp * 16 + lane / 4) * kRowsB + lane % 4 * 2;
    float sums[4] = {from[0], from[1], from[8 * kRowsB], from[8 * kRowsB + 1]};
    if (!WRONG) wgmma_fence();
    multiply(sums, wgmma_operand(operands.a), wgmma_operand(operands.b));  // BUG
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_result(sums);
    store_sums(y, sums);
}

__global__ void __launch_bounds__(128) wrong(const Element* a, const Element* b, const float* c, float* y) {
    product<true>(a, b, c, y);
}

__global__ void __launch_bounds__(128) right(const Element* a, const Element* b, const float* c, float* y) {
    product<false>(a, b, c, y);
}
