// Shared by the variants of this family: loading a score, the element of a row with its scale and mask applied.
//
// x is (rows, cols), read at x[r * x_row + c * x_col]; y is written at y[r * y_row + c * y_col]; the mask is read at
// mask[r * m_row + c * m_col], with stride 0 along broadcast axes. Strides are in elements, 64-bit. y may be x. T is
// float, __half or __nv_bfloat16, M is bool or float; all arithmetic is in float.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../common/exponential.cuh"
#include "../common/pack.cuh"
#include "../common/reduce.cuh"

// Without a mask the mask pointer is never read: the caller passes x, and M is T.
enum Mask { kNoMask, kBoolMask, kFloatMask };

// scale * x + mask; -inf if the mask hides x, whatever x is (a float mask hides with -inf). Sets `seen` if the element
// is not hidden. The product and the sum are rounded separately, as in the definition: a fused operation would change
// every exponential, for scores of 10,000 by more than its own rounding error.
template <int MASK, class T, class M>
__device__ __forceinline__ float score(T x, M mask, float scale, bool& seen) {
    float value = __fmul_rn(static_cast<float>(x), scale);
    if constexpr (MASK == kNoMask) {
        seen = true;
    } else {
        const float added = static_cast<float>(mask);
        const bool hidden = MASK == kBoolMask ? added == 0.0f : added == -kInfinity;
        if constexpr (MASK == kFloatMask) value = __fadd_rn(value, added);
        if (hidden) value = -kInfinity;
        seen = seen || !hidden;
    }
    return value;
}
