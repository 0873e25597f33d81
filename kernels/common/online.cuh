// The running pair of the online softmax: the maximum so far, and the sum of exp(x - maximum) so far.
// Source of the update: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
#pragma once
#include "numbers.cuh"

struct Online {
    float maximum;
    float sum;
};

__device__ __forceinline__ Online online_empty() {
    return {-kInfinity, 0.0f};
}

// While nothing above -inf has been seen, the shift is 0: exp(-inf - -inf) would be NaN and would spoil a row that
// only starts with -inf. A row of -inf alone still ends as NaN, because its elements are normalised by maximum = -inf.
__device__ __forceinline__ float online_shift(float maximum) {
    return maximum == -kInfinity ? 0.0f : maximum;
}

// A NaN is not seen by fmaxf but enters the sum, where it stays.
__device__ __forceinline__ Online online_add(Online a, float x) {
    const float maximum = fmaxf(a.maximum, x);
    const float shift = online_shift(maximum);
    return {maximum, a.sum * expf(a.maximum - shift) + expf(x - shift)};
}

__device__ __forceinline__ Online online_merge(Online a, Online b) {
    const float maximum = fmaxf(a.maximum, b.maximum);
    const float shift = online_shift(maximum);
    return {maximum, a.sum * expf(a.maximum - shift) + b.sum * expf(b.maximum - shift)};
}
