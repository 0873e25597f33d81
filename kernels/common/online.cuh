// The state of the online softmax: the maximum so far, and the sum of exp(x - maximum) so far.
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

// The shift is 0 while all elements so far are -inf: exp(-inf - -inf) would be NaN and spoil a row that only starts
// with -inf. A row of only -inf still becomes NaN, because its elements are normalised by maximum = -inf.
__device__ __forceinline__ float online_shift(float maximum) {
    return maximum == -kInfinity ? 0.0f : maximum;
}

// fmaxf ignores a NaN, but the NaN reaches the sum and stays there.
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
