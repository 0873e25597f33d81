// A warpgroup returns registers. Wrong: its warps keep different numbers of them.
// y: (128,): y[t] = t; one block of 128
#include "hopper.cuh"

template <bool WRONG>
__device__ __forceinline__ void body(int* y) {
    if (WRONG && threadIdx.x >= 64)
        registers_decrease<40>();  // BUG
    else
        registers_decrease<24>();  // BUG
    y[threadIdx.x] = threadIdx.x;
}

__global__ void __launch_bounds__(128, 1) wrong(int* y) {
    body<true>(y);
}

__global__ void __launch_bounds__(128, 1) right(int* y) {
    body<false>(y);
}
