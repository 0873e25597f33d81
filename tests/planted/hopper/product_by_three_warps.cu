// A product of the rows that exist. Wrong: the last warp, whose rows are past the end, does not take part.
// a: (64, 64), b: (8, 64), y: (64, 8): y = a * b^T for `rows` rows; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void product(const Element* a, const Element* b, float* y, int rows) {
    __shared__ Operands operands;
    put_operands(operands, a, b);
    float sums[4] = {};
    if (WRONG && threadIdx.x / kWarp * 16 >= rows) return;
    wgmma_fence();
    multiply(sums, wgmma_operand(operands.a), wgmma_operand(operands.b));  // BUG
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_result(sums);
    if (threadIdx.x / kWarp * 16 < rows) store_sums(y, sums);
}

__global__ void __launch_bounds__(128) wrong(const Element* a, const Element* b, float* y, int rows) {
    product<true>(a, b, y, rows);
}

__global__ void __launch_bounds__(128) right(const Element* a, const Element* b, float* y, int rows) {
    product<false>(a, b, y, rows);
}
