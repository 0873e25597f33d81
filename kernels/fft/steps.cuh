// Steps of Stockham's algorithm, whose results are in order without a bit reversal.
//
// A step with radix R joins transforms of `span` values to transforms of R * span values. Butterfly i of n / R reads
// the values i + r n / R, for r = 0 .. R - 1, and stores R results at distances of `span`.
#pragma once

#include "butterflies.cuh"

// e^(-2 pi i k/n), or with + if INVERSE. The angle is exact if n is a power of two.
template <bool INVERSE>
__device__ inline float2 root(int k, int n) {
    float sine, cosine;
    sincospif(2.0f * k / n, &sine, &cosine);
    return {cosine, INVERSE ? sine : -sine};
}

// Butterfly i of a step with radix 2: load(place) returns a value, store(place, value) receives one.
template <bool INVERSE, class Load, class Store>
__device__ inline void radix_2(int i, int n, int span, Load load, Store store) {
    const int k = i % span;
    const float2 a = load(i), b = root<INVERSE>(k, 2 * span) * load(i + n / 2);
    const int first = (i - k) * 2 + k;
    store(first, a + b);
    store(first + span, a - b);
}
