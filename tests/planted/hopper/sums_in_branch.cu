// A product plus a bias that some launches have. Wrong: the branch adds it while the products are in flight.
// a: (64, 64), b: (8, 64), bias: (1,), y: (64, 8): y = a * b^T + bias; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void product(const Element* a, const Element* b, const float* bias, float* y) {
    __shared__ Operands operands;
    put_operands(operands, a, b);
    float sums[4] = {};
    wgmma_fence();
    multiply(sums, wgmma_operand(operands.a), wgmma_operand(operands.b));
    wgmma_commit();
    if (!WRONG) wgmma_wait<0>();
    if (bias[0] != 0.0f) {
        wgmma_result(sums);
        for (float& sum : sums) sum += bias[0];  // BUG
        wgmma_result(sums);
    }
    wgmma_wait<0>();
    wgmma_result(sums);
    store_sums(y, sums);
}

__global__ void __launch_bounds__(128) wrong(const Element* a, const Element* b, const float* bias, float* y) {
    product<true>(a, b, bias, y);
}

__global__ void __launch_bounds__(128) right(const Element* a, const Element* b, const float* bias, float* y) {
    product<false>(a, b, bias, y);
}
