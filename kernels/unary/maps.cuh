// Element-wise maps and conversions between number types. A map is a struct with one float parameter.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "../common/numbers.cuh"

// Conversion to float, which is exact for float16 and bfloat16. int32 has its own conversions below.
__device__ __forceinline__ float to_float(float x) {
    return x;
}
__device__ __forceinline__ float to_float(__half x) {
    return __half2float(x);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}

// Conversion from float, rounded to nearest even. Values too large for float16 or bfloat16 become infinite. For int32,
// values out of range become the nearest int32, and NaN becomes 0.
template <class Y>
__device__ __forceinline__ Y from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
    return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ int from_float<int>(float x) {
    return __float2int_rn(x);
}

// y = factor * x, with the product in float32
template <class T>
struct Scale {
    float factor;
    __device__ __forceinline__ T operator()(T x) const { return from_float<T>(factor * to_float(x)); }
};

// y = 0 if x < limit, else x; NaN stays NaN
template <class T>
struct Threshold {
    float limit;
    __device__ __forceinline__ T operator()(T x) const {
        const float value = to_float(x);
        return from_float<T>(value < limit ? 0.0f : value);  // to float and back is exact; no branch
    }
};

template <class X, class Y>
struct Cast {
    float unused;
    __device__ __forceinline__ Y operator()(X x) const { return from_float<Y>(to_float(x)); }
};

// An int32 has up to 31 significant bits. Rounding to float32 and then to 16 bits would sometimes round the wrong way.
// Rounding to odd first (towards zero, with the last bit set if the conversion was inexact) avoids that.
template <class Y>
struct Cast<int, Y> {
    float unused;
    __device__ __forceinline__ Y operator()(int x) const {
        const float truncated = __int2float_rz(x);
        const bool exact = static_cast<int64>(truncated) == x;
        return from_float<Y>(__int_as_float(__float_as_int(truncated) | (exact ? 0 : 1)));
    }
};
template <>
struct Cast<int, float> {
    float unused;
    __device__ __forceinline__ float operator()(int x) const { return __int2float_rn(x); }
};
template <>
struct Cast<int, int> {
    float unused;
    __device__ __forceinline__ int operator()(int x) const { return x; }
};
