// The fused epilogue of a product: D = scale * activation(alpha * A * B + beta * C + bias) + residual, in float,
// rounded once to the output's type.
#pragma once
#include "../common/numbers.cuh"

// Values of Epilogue's ACTIVATION; plus kScaled if scale is not 1: each operation per element costs the tensor cores
// time, also while another warpgroup multiplies.
constexpr int kNoActivation = 0, kRelu = 1, kGelu = 2, kGeluTanh = 3, kSilu = 4, kScaled = 8;

// Values of Epilogue's BIAS: none, one of any strides, a number per row, adjacent numbers per column.
constexpr int kNoBias = 0, kAnyBias = 1, kBiasPerRow = 2, kBiasPerColumn = 3;

// The larger of two numbers, NaN if x is NaN; fmaxf would return `least`.
__device__ __forceinline__ float at_least(float x, float least) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(least));
    return result;
}

// 1 / x within 1 ulp; 0 if the result would be denormal.
__device__ __forceinline__ float reciprocal(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// 2^x within 2 ulp; 0 if the result would be denormal.
__device__ __forceinline__ float power_of_two(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// Below it x * sigmoid(x) is 0 in float. A number, because -infinity times a sigmoid of 0 is NaN.
constexpr float kNoSigmoid = -1e30f;

// x / (1 + e^-x). The error of this and of the next two functions is at most 2^-22 * |x|.
__device__ __forceinline__ float silu(float x) {
    x = at_least(x, kNoSigmoid);
    return x * reciprocal(1.0f + power_of_two(x * -1.44269504f));
}

// x / 2 * (1 + tanh(u)), u = sqrt(2 / pi) * (x + 0.044715 * x^3), computed as x / (1 + e^-2u).
__device__ __forceinline__ float gelu_tanh(float x) {
    x = at_least(x, kNoSigmoid);
    return x * reciprocal(1.0f + power_of_two(x * fmaf(x * x, -0.10294324f, -2.3022082f)));
}

// x * Phi(x) = x / 2 * (1 + erf(x / sqrt(2))), computed as max(x, 0) - |x| * Phi(-|x|). log2 of Phi(-y) is nearly a
// polynomial: the coefficients minimise the largest error of y * Phi(-y) for y up to 6. It decreases from there to
// -1990 at y = 16. One exponential; a formula with a reciprocal needs two operations of the slowest pipe.
__device__ __forceinline__ float gelu(float x) {
    const float y = fminf(fabsf(x), 16.0f);
    float log = -1.3667310e-6f;
    log = fmaf(log, y, 2.1624488e-5f);
    log = fmaf(log, y, -1.00647987e-4f);
    log = fmaf(log, y, -3.47762776e-4f);
    log = fmaf(log, y, 7.34719168e-3f);
    log = fmaf(log, y, -5.27018011e-2f);
    log = fmaf(log, y, -0.459134936f);
    log = fmaf(log, y, -1.15111530f);
    log = fmaf(log, y, -0.999999762f);
    return fmaf(-y, power_of_two(log), at_least(x, 0.0f));
}

// The arrays and factors that a kernel applies to its sums. B: type of the bias, R: type of c, of the residual and of
// the output. ADDS_C, RESIDUAL: whether the operand exists; the others' pointers are not read.
//
// Pointers are to element (0, 0) of one product (of a batch). Strides are in elements, 0 along an axis on which the
// bias is broadcast.
template <class B, class R, int ACTIVATION, bool ADDS_C, int BIAS, bool RESIDUAL>
struct Epilogue {
    static constexpr int kActivation = ACTIVATION % kScaled;
    static constexpr bool kScales = ACTIVATION >= kScaled;
    static_assert(ACTIVATION / kScaled <= 1 && kActivation <= kSilu, "an unknown activation");
    static constexpr int kBias = BIAS;

    const R* c;
    int64 c_row, c_col;
    const B* bias;
    int64 bias_row, bias_col;
    const R* residual;
    int64 residual_row, residual_col;
    float alpha, beta, scale;

    // The epilogue of the part of the output that begins at (row, col).
    __device__ __forceinline__ Epilogue from(int64 row, int64 col) const {
        Epilogue part = *this;
        if constexpr (ADDS_C) part.c += row * c_row + col * c_col;
        if constexpr (BIAS == kAnyBias) part.bias += row * bias_row + col * bias_col;
        if constexpr (BIAS == kBiasPerRow) part.bias += row * bias_row;
        if constexpr (BIAS == kBiasPerColumn) part.bias += col;
        if constexpr (RESIDUAL) part.residual += row * residual_row + col * residual_col;
        return part;
    }

    // The numbers that the epilogue reads for an element of the output.
    struct Added {
        float c, bias, residual;
    };

    __device__ __forceinline__ float bias_at(int64 row, int64 col) const {
        if constexpr (BIAS == kBiasPerRow) return static_cast<float>(bias[row * bias_row]);
        if constexpr (BIAS == kBiasPerColumn) return static_cast<float>(bias[col]);
        return static_cast<float>(bias[row * bias_row + col * bias_col]);
    }

    // in_rows, in_cols: whether (row, col) is within the output; otherwise nothing is read there.
    __device__ __forceinline__ Added added(int64 row, int64 col, bool in_rows, bool in_cols) const {
        const bool inside = in_rows && in_cols;
        Added read = {};
        if constexpr (ADDS_C) read.c = inside ? static_cast<float>(c[row * c_row + col * c_col]) : 0.0f;
        if constexpr (BIAS == kBiasPerRow) read.bias = in_rows ? bias_at(row, 0) : 0.0f;
        if constexpr (BIAS == kBiasPerColumn) read.bias = in_cols ? bias_at(0, col) : 0.0f;
        if constexpr (BIAS == kAnyBias) read.bias = inside ? bias_at(row, col) : 0.0f;
        if constexpr (RESIDUAL)
            read.residual = inside ? static_cast<float>(residual[row * residual_row + col * residual_col]) : 0.0f;
        return read;
    }

    // The element of the output at (row, col), within the output, from its sum of products.
    __device__ __forceinline__ float at(float sum, int64 row, int64 col) const {
        return of(sum, added(row, col, true, true));
    }

    // The element of the output from its sum of products and what `added` returned for it.
    __device__ __forceinline__ float of(float sum, const Added& read) const {
        // Without an activation or a bias, scale is part of the other two factors: one product of numbers that all
        // elements share.
        constexpr bool kSplit = kActivation != kNoActivation || BIAS != kNoBias;
        float value = (kSplit ? alpha : scale * alpha) * sum;
        if constexpr (ADDS_C) value = fmaf(kSplit ? beta : scale * beta, read.c, value);
        if constexpr (BIAS != kNoBias) value += read.bias;
        value = activated(value);
        if constexpr (kSplit && kScales && RESIDUAL) return fmaf(scale, value, read.residual);
        if constexpr (kSplit && kScales) return scale * value;
        if constexpr (RESIDUAL) return value + read.residual;
        return value;
    }

  private:
    static __device__ __forceinline__ float activated(float x) {
        if constexpr (kActivation == kRelu) return at_least(x, 0.0f);
        if constexpr (kActivation == kGelu) return gelu(x);
        if constexpr (kActivation == kGeluTanh) return gelu_tanh(x);
        if constexpr (kActivation == kSilu) return silu(x);
        return x;
    }
};
