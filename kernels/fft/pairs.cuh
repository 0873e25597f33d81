// The transform of 2 m real values from that of their m pairs, and back. w = e^(-2 pi i k/(2 m)), for term k.
#pragma once

#include "butterflies.cuh"

// Terms k and m - k of the real values
struct Terms {
    float2 low, high;
};

// a: term k of the pairs; b: the conjugate of term m - k. The transforms of the even and of the odd elements are the
// symmetric and antisymmetric parts.
__device__ inline Terms terms_of_pairs(float2 a, float2 b, float2 w) {
    const float2 even = 0.5f * (a + b), odd = 0.5f * swapped(a - b);
    const float2 turned_odd = w * float2{odd.x, -odd.y};
    return {even + turned_odd, conjugate(even - turned_odd)};
}

// The value whose inverse transform has the pairs. a: term k of the real values; b: the conjugate of term m - k.
__device__ inline float2 pair_of_terms(float2 a, float2 b, float2 w) {
    const float2 odd = conjugate(w) * (a - b);
    return a + b + float2{-odd.y, odd.x};
}
