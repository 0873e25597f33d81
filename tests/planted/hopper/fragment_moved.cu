// A product with A in registers; the next fragment is loaded while the products of this one are in flight. Wrong: it is
// moved into this one's registers before the wait.
// a: (64, 64), b: (8, 64), y: (64, 8): y = a * b^T; one block of 128
#include "small.cuh"

// Moves a fragment; asm, so that the compiler keeps the place of the moves.
__device__ __forceinline__ void move_fragment(unsigned (&to)[4], const unsigned (&from)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("xor.b32 %0, %0, %0;\n\tor.b32 %0, %0, %1;" : "+r"(to[i]) : "r"(from[i]));
}

template <bool WRONG>
__device__ __forceinline__ void product(const Element* a, const Element* b, float* y) {
    __shared__ Operands operands;
    put_operands(operands, a, b);
    float sums[4] = {};
    const uint64 rows_b = wgmma_operand(operands.b);
    unsigned fragment[4], next[4];
    load_matrices(fragment, fragment_address(operands.a, 0));
#pragma unroll 1
    for (int i = 0; i < kDeep / 16; ++i) {
        wgmma_fence();
        multiply_16(sums, fragment, rows_b + 2 * i);
        wgmma_commit();
        load_matrices(next, fragment_address(operands.a, (i + 1) % (kDeep / 16)));
        if (!WRONG) wgmma_wait<0>();
        move_fragment(fragment, next);  // BUG
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
