// What the rungs of this family share: the element of a row that the softmax is taken of, with its scale and mask.
//
// x is (rows, cols) read at x[r * x_row + c * x_col], y written at y[r * y_row + c * y_col], the mask read at
// mask[r * m_row + c * m_col] (0 where it is broadcast); strides in elements, 64-bit. y may be x itself. T is float,
// __half or __nv_bfloat16, M is bool or float; all arithmetic is float's.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../common/exponential.cuh"
#include "../common/pack.cuh"
#include "../common/reduce.cuh"

// Without a mask its pointer is never read; x stands there, and M is T.
enum Mask { kNoMask, kBoolMask, kFloatMask };

// scale * x + mask, -inf where the mask hides x, whatever x is: an additive mask hides with -inf. `seen` becomes true
// for an element that is not hidden. Both roundings are kept apart, as the definition has them: one fused operation
// would move every exponential by the difference, which for scores of 10,000 is more than its own rounding.
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
