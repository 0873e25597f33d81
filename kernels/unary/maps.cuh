// Maps of one value to one value, and the number types they work on. A map is a struct with one float parameter.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "../common/numbers.cuh"

// To float, which holds every float16 and bfloat16 exactly. int32 has conversions of its own below.
__device__ __forceinline__ float to_float(float x) {
    return x;
}
__device__ __forceinline__ float to_float(__half x) {
    return __half2float(x);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}

// From float, rounded to nearest even. Too large for a float16 or bfloat16 is infinite; too large for an int32 is its
// largest (or smallest) value, and NaN is 0 there.
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

// y = factor * x, the product in float32
template <class T>
struct Scale {
    float factor;
    __device__ __forceinline__ T operator()(T x) const { return from_float<T>(factor * to_float(x)); }
};

// y = x, or 0 where x < limit; NaN is below nothing and stays
template <class T>
struct Threshold {
    float limit;
    __device__ __forceinline__ T operator()(T x) const {
        const float value = to_float(x);
        return from_float<T>(value < limit ? 0.0f : value);  // exact both ways, and chosen without a branch
    }
};

template <class X, class Y>
struct Cast {
    float unused;
    __device__ __forceinline__ Y operator()(X x) const { return from_float<Y>(to_float(x)); }
};

// An int32 has up to 31 significant bits. Rounded to float32 first and to 16 bits then, some would be rounded the wrong
// way; rounded to odd first (towards zero, the last bit set where anything was lost), none is.
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
