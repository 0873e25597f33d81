// Walks a row of floats with any stride; neighbouring threads of a block take neighbouring elements.
//
// Addresses are incremented, not multiplied: a 64-bit product per element would cost as much as the element's own
// arithmetic. Loops are unrolled by four, so each thread has four loads in flight.
#pragma once
#include "numbers.cuh"

// Calls use(element) once for every element of the row; the block's threads share the calls. `stride` in floats.
template <class Use>
__device__ __forceinline__ void for_each_strided(const float* row, int64 stride, int64 cols, Use use) {
    const int64 step = blockDim.x * stride;
    const float* at = row + threadIdx.x * stride;
#pragma unroll 4
    for (int64 c = threadIdx.x; c < cols; c += blockDim.x, at += step) use(*at);
}

// Sets to[i] = f(from[i]) for every i of the row. Both may be the same row.
template <class F>
__device__ __forceinline__ void map_strided(
    const float* from, int64 from_stride, float* to, int64 to_stride, int64 cols, F f) {
    const int64 from_step = blockDim.x * from_stride, to_step = blockDim.x * to_stride;
    from += threadIdx.x * from_stride;
    to += threadIdx.x * to_stride;
#pragma unroll 4
    for (int64 c = threadIdx.x; c < cols; c += blockDim.x, from += from_step, to += to_step) *to = f(*from);
}
