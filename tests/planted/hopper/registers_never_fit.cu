// One warpgroup returns registers, two take them. Wrong: they ask for more than a block has, and wait for ever.
// y: (384,): y[t] = t; one block of 384
#include "hopper.cuh"

template <int LEFT>
__device__ __forceinline__ void body(int* y) {
    if (threadIdx.x < 128)
        registers_decrease<LEFT>();
    else
        registers_increase<240>();  // BUG
    y[threadIdx.x] = threadIdx.x;
}

__global__ void __launch_bounds__(384, 1) wrong(int* y) {
    body<96>(y);
}

__global__ void __launch_bounds__(384, 1) right(int* y) {
    body<24>(y);
}
