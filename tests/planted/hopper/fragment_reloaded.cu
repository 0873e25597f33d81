// A product with A in registers, 16 columns at a time. Wrong: the next fragment is loaded into the registers that the
// product in flight reads.
// a: (64, 64), b: (8, 64), y: (64, 8): y = a * b^T; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void product(const Element* a, const Element* b, float* y) {
    __shared__ Operands operands;
    put_operands(operands, a, b);
    float sums[4] = {};
    const uint64 rows_b = wgmma_operand(operands.b);
#pragma unroll 1
    for (int i = 0; i < kDeep / 16; ++i) {
        unsigned fragment[4];
        load_matrices(fragment, fragment_address(operands.a, i));  // BUG
        wgmma_fence();
        multiply_16(sums, fragment, rows_b + 2 * i);
        wgmma_commit();
        if (!WRONG) wgmma_wait<0>();
    }
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
