// Shared by the variants of this family: the gradient of softmax and log-softmax of scale * x, element by element.
//
// y is the forward result, grad its gradient, out the gradient of x. All are (rows, cols), accessed at p[r * p_row + c
// * p_col]. Strides are in elements, 64-bit, and may be 0 for grad and y. out may be grad or y. T is float, __half or
// __nv_bfloat16; all arithmetic is in float.
//
//   softmax:      out = scale * (y * (grad - sum over the row of grad * y))
//   log-softmax:  out = scale * (grad - exp(y) * sum over the row of grad)
//
// Elements hidden by a mask have y = 0, or -inf for log-softmax: exp(y) is then 0. NaN and infinities follow IEEE
// arithmetic.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../common/exponential.cuh"
#include "../common/pack.cuh"
#include "../common/reduce.cuh"

// The offset of column c. VEC > 1 means contiguous columns: constant offsets then need no extra instructions.
template <int VEC>
__device__ __forceinline__ int64 place(int64 c, int64 stride) {
    return VEC > 1 ? c : c * stride;
}

// Forces the compiler to convert the 16-bit elements of `piece` again at their next use: floats kept from earlier
// conversions need twice the registers. blockIdx.y is 0 in every launch of this family, which the compiler cannot know.
// (An empty asm statement is not enough: the compiler sees through it.)
template <class T, int VEC>
__device__ __forceinline__ void forget_conversions(Pack<T, VEC>& piece) {
    if constexpr (sizeof(T) == 2 && VEC == 8) {
        uint4& words = reinterpret_cast<uint4&>(piece);
        const unsigned zero = blockIdx.y;
        words = {words.x ^ zero, words.y ^ zero, words.z ^ zero, words.w ^ zero};
    }
}

// Adds the terms of one piece to `sum`.
template <bool LOG, class T, int VEC>
__device__ __forceinline__ void add_terms(float& sum, const Pack<T, VEC>& grad, const Pack<T, VEC>& y) {
#pragma unroll
    for (int k = 0; k < VEC; ++k) {
        const float g = static_cast<float>(grad.at[k]);
        sum += LOG ? g : g * static_cast<float>(y.at[k]);
    }
}

// The gradient of x for one piece; `sum` is that of the whole row.
template <bool LOG, class T, int VEC>
__device__ __forceinline__ Pack<T, VEC> gradient(
    const Pack<T, VEC>& grad, const Pack<T, VEC>& y, float sum, float scale) {
    Pack<T, VEC> result;
#pragma unroll
    for (int k = 0; k < VEC; ++k) {
        const float g = static_cast<float>(grad.at[k]), value = static_cast<float>(y.at[k]);
        const float unscaled = LOG ? g - exponential(value) * sum : value * (g - sum);
        result.at[k] = static_cast<T>(scale * unscaled);
    }
    return result;
}

// Writes a piece of 16 bytes in one store. For plain stores the compiler splits each thread's first one into elements.
template <class T, int VEC>
__device__ __forceinline__ void store(T* to, const Pack<T, VEC>& piece) {
    if constexpr (sizeof(Pack<T, VEC>) == 16) {
        const uint4& words = reinterpret_cast<const uint4&>(piece);
        asm volatile(
            "st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
            : "memory");
    } else {
        *reinterpret_cast<Pack<T, VEC>*>(to) = piece;
    }
}
