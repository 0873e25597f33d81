// The indices of element `number` of a four-axis array, slowest axis first.
#pragma once
#include "numbers.cuh"

struct Place {
    int64 i0, i1, i2, i3;

    // The element's offset in an array with these strides.
    __device__ __forceinline__ int64 by(int64 s0, int64 s1, int64 s2, int64 s3) const {
        return i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3;
    }
};

// n1, n2, n3: the extents of all axes except the slowest. Number: uint32 if all element numbers fit, because a 64-bit
// division takes several times as long; else uint64.
template <class Number>
__device__ __forceinline__ Place place_of(Number number, Number n1, Number n2, Number n3) {
    const Number row = number / n3, sheet = row / n2, i0 = sheet / n1;
    return {static_cast<int64>(i0), static_cast<int64>(sheet - i0 * n1), static_cast<int64>(row - sheet * n2),
        static_cast<int64>(number - row * n3)};
}
