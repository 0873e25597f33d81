// Real and complex numbers in memory, as float or __half; arithmetic is in float.
#pragma once

#include <cuda_fp16.h>

// How the elements of a row are accessed: at any distance; as neighbours; as neighbours, two real ones at a time.
enum Access { STRIDED, CONTIGUOUS, ALIGNED_PAIRS };

template <class T>
struct Complex;
template <>
struct Complex<float> {
    using type = float2;
};
template <>
struct Complex<__half> {
    using type = __half2;
};

template <class T, bool COMPLEX>
struct Element {
    using type = T;
};
template <class T>
struct Element<T, true> {
    using type = typename Complex<T>::type;
};

__device__ inline float widened(float x) {
    return x;
}
__device__ inline float widened(__half x) {
    return __half2float(x);
}
__device__ inline float2 widened(float2 z) {
    return z;
}
__device__ inline float2 widened(__half2 z) {
    return __half22float2(z);
}
__device__ inline void narrowed(float& out, float x) {
    out = x;
}
__device__ inline void narrowed(__half& out, float x) {
    out = __float2half_rn(x);
}
__device__ inline void narrowed(float2& out, float2 z) {
    out = z;
}
__device__ inline void narrowed(__half2& out, float2 z) {
    out = __float22half2_rn(z);
}

// Elements 2 i and 2 i + 1 of a real array with a distance of `step`; adjacent ones in one access if the array is
// aligned.
template <int ACCESS, class T>
__device__ inline float2 pair(const T* array, int i, long long step) {
    if constexpr (ACCESS == ALIGNED_PAIRS) return widened(reinterpret_cast<const typename Complex<T>::type*>(array)[i]);
    if constexpr (ACCESS == CONTIGUOUS) step = 1;
    return {widened(array[2 * i * step]), widened(array[(2 * i + 1) * step])};
}
template <int ACCESS, class T>
__device__ inline void set_pair(T* array, int i, long long step, float2 values) {
    if constexpr (ACCESS == ALIGNED_PAIRS) {
        narrowed(reinterpret_cast<typename Complex<T>::type*>(array)[i], values);
    } else {
        if constexpr (ACCESS == CONTIGUOUS) step = 1;
        narrowed(array[2 * i * step], values.x);
        narrowed(array[(2 * i + 1) * step], values.y);
    }
}
