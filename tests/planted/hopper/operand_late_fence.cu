// A product of operands that ordinary stores write. Wrong: the fence is after the barrier, so it orders no other
// thread's stores.
// a: (64, 64), b: (8, 64), y: (64, 8): y = a * b^T; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void product(const Element* a, const Element* b, float* y) {
    __shared__ Operands operands;
    put_rows(operands.a, a, kRowsA);
    put_rows(operands.b, b, kRowsB);
    if (!WRONG) fence_async_shared();
    __syncthreads();
    if (WRONG) fence_async_shared();
    float sums[4] = {};
    wgmma_fence();
    multiply(sums, wgmma_operand(operands.a), wgmma_operand(operands.b));  // BUG
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
