// The first warpgroup returns registers, the two others take them. Wrong: only its first warp, which has work to do,
// returns them.
// y: (384,): y[t] = t; one block of 384
#include "hopper.cuh"

template <bool WRONG>
__device__ __forceinline__ void body(int* y) {
    if (threadIdx.x < 128) {
        if (!WRONG || threadIdx.x < kWarp) registers_decrease<40>();  // BUG
        y[threadIdx.x] = threadIdx.x;
    } else {
        registers_increase<168>();
        y[threadIdx.x] = threadIdx.x;
    }
}

__global__ void __launch_bounds__(384, 1) wrong(int* y) {
    body<true>(y);
}

__global__ void __launch_bounds__(384, 1) right(int* y) {
    body<false>(y);
}
