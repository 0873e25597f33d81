// A product with A in registers. Wrong: the fragment is loaded after the wgmma.fence.
// a: (64, 64), b: (8, 64), y: (64, 8): y = a * b^T; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void product(const Element* a, const Element* b, float* y) {
    __shared__ Operands operands;
    put_operands(operands, a, b);
    float sums[4] = {};
    const uint64 rows_b = wgmma_operand(operands.b);
    for (int i = 0; i < kDeep / 16; ++i) {
        unsigned fragment[4];
        if (WRONG) wgmma_fence();
        load_matrices(fragment, fragment_address(operands.a, i));
        if (!WRONG) wgmma_fence();
        multiply_16(sums, fragment, rows_b + 2 * i);  // BUG
        wgmma_commit();
        wgmma_wait<0>();
    }
    wgmma_result(sums);
    store_sums(y, sums);
}

__global__ void __launch_bounds__(128) wrong(const Element* a, const Element* b, float* y) {
    product<true>(a, b, y);
}

__global__ void __launch_bounds__(128) right(const Element* a, const Element* b, float* y) {
    product<false>(a, b, y);
}
