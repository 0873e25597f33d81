// Pixels outside an image: zero, the nearest pixel, or the image mirrored at its outermost pixels (which are not
// repeated; an image of one row or column repeats that one).
#pragma once
#include "../common/numbers.cuh"

enum Border { ZERO = 0, CLAMP = 1, REFLECT = 2 };

// The index to read for i, which is at most one outside 0..n-1; -1 for a zero.
template <int BORDER>
__device__ __forceinline__ int64 inside(int64 i, int64 n) {
    if (i >= 0 && i < n) return i;
    if (BORDER == ZERO) return -1;
    if (BORDER == CLAMP || n == 1) return i < 0 ? 0 : n - 1;
    return i < 0 ? 1 : n - 2;
}

// The element at (r, c), which may be one pixel outside.
template <int BORDER>
__device__ __forceinline__ float element(
    const float* image, int64 r, int64 c, int64 rows, int64 cols, int64 row, int64 col) {
    const int64 at_row = inside<BORDER>(r, rows), at_col = inside<BORDER>(c, cols);
    return at_row < 0 || at_col < 0 ? 0.0f : image[at_row * row + at_col * col];
}
