// Real and complex numbers in memory, as float or __half; arithmetic is in float.
#pragma once

#include <cuda_fp16.h>

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
