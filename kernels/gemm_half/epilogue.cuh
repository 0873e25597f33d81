// The fused epilogue of a product: D = scale * activation(alpha * A * B + beta * C + bias) + residual, in float,
// rounded once to the output's type.
#pragma once
#include "../common/mma.cuh"

// Values of Epilogue's ACTIVATION; plus kScaled if scale is not 1: each operation per element costs the tensor cores
// time, also while another warpgroup multiplies.
constexpr int kNoActivation = 0, kRelu = 1, kGelu = 2, kGeluTanh = 3, kSilu = 4, kScaled = 8;

// Values of Epilogue's BIAS: none, one of any strides, a number per row, adjacent numbers per column; kBiasPairs: as
// kBiasPerColumn, and each pair 2 * i, 2 * i + 1 is aligned; n is then even.
constexpr int kNoBias = 0, kAnyBias = 1, kBiasPerRow = 2, kBiasPerColumn = 3, kBiasPairs = 4;

// Values of Epilogue's C and RESIDUAL: no array, one of any strides, one whose adjacent rows or columns are adjacent
// elements; kColumnPairs: as kAdjacentColumns, and each pair of columns 2 * i, 2 * i + 1 is aligned; n is then even.
constexpr int kNoArray = 0, kAnyArray = 1, kAdjacentRows = 2, kAdjacentColumns = 3, kColumnPairs = 4;

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

// x / (1 + e^-x). The error of this and of gelu_tanh is at most 2^-22 * |x|, as is that of gelu for a float.
__device__ __forceinline__ float silu(float x) {
    x = at_least(x, kNoSigmoid);
    return x * reciprocal(1.0f + power_of_two(x * -1.44269504f));
}

// x / 2 * (1 + tanh(u)), u = sqrt(2 / pi) * (x + 0.044715 * x^3), computed as x / (1 + e^-2u).
__device__ __forceinline__ float gelu_tanh(float x) {
    x = at_least(x, kNoSigmoid);
    return x * reciprocal(1.0f + power_of_two(x * fmaf(x * x, -0.10294324f, -2.3022082f)));
}

// A polynomial in x; its coefficients, from that of x^0 on.
__device__ __forceinline__ float polynomial(float, float last) {
    return last;
}
template <class... F>
__device__ __forceinline__ float polynomial(float x, float first, F... others) {
    return fmaf(polynomial(x, others...), x, first);
}

// log2 of Phi(-y), the normal distribution's function, for results of type R. It is nearly a polynomial. The
// coefficients minimise the largest relative error of Phi(-y) if R is a half (1.1e-5 while y * Phi(-y) > 1e-5) or a
// bfloat16 (8e-5 while it is > 1e-4): less than a 20th of the rounding to R. Otherwise they minimise the largest error
// of y * Phi(-y). y is at most 16: from 9 on y * Phi(-y) is less than 1e-17, of the polynomials too.
template <class R>
__device__ __forceinline__ float log2_phi(float y) {
    return polynomial(y, -0.999999762f, -1.15111530f, -0.459134936f, -5.27018011e-2f, 7.34719168e-3f, -3.47762776e-4f,
        -1.00647987e-4f, 2.1624488e-5f, -1.3667310e-6f);
}
template <>
__device__ __forceinline__ float log2_phi<__half>(float y) {
    return polynomial(
        y, -1.00001433f, -1.15092307f, -0.459478127f, -5.27473043e-2f, 7.80657194e-3f, -7.20687419e-4f, 3.03302581e-5f);
}
template <>
__device__ __forceinline__ float log2_phi<__nv_bfloat16>(float y) {
    return polynomial(y, -1.00010877f, -1.14935467f, -0.463729237f, -4.85289590e-2f, 5.91426144e-3f, -3.29455443e-4f);
}

// x * Phi(x) = x / 2 * (1 + erf(x / sqrt(2))), computed as max(x, 0) - |x| * Phi(-|x|). One exponential; a formula with
// a reciprocal needs two operations of the slowest pipe. R: type of the result.
template <class R>
__device__ __forceinline__ float gelu(float x) {
    const float y = fminf(fabsf(x), 16.0f);
    return fmaf(-y, power_of_two(log2_phi<R>(y)), at_least(x, 0.0f));
}

// Returns the same address of global memory, of which the compiler does not know how it was computed. Otherwise it
// computes the addresses of elements near it from the start of the array, which takes many instructions and registers.
template <class T>
__device__ __forceinline__ const T* kept(const T* address) {
    uint64 bits = __cvta_generic_to_global(address);
    asm("" : "+l"(bits));
    return static_cast<const T*>(__cvta_global_to_generic(bits));
}

// The two numbers of a register, of type T.
template <class T>
__device__ __forceinline__ float2 unpack(unsigned pair);

template <>
__device__ __forceinline__ float2 unpack<__half>(unsigned pair) {
    const auto number = [](unsigned bits) { return __half2float(__ushort_as_half(static_cast<unsigned short>(bits))); };
    return make_float2(number(pair), number(pair >> 16));
}

template <>
__device__ __forceinline__ float2 unpack<__nv_bfloat16>(unsigned pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// Two adjacent numbers, in one access; the address is a multiple of their size.
template <class T>
__device__ __forceinline__ float2 pair_at(const T* address) {
    static_assert(sizeof(T) == 2, "16-bit numbers, or floats");
    return unpack<T>(*reinterpret_cast<const unsigned*>(address));
}
__device__ __forceinline__ float2 pair_at(const float* address) {
    return *reinterpret_cast<const float2*>(address);
}

// An array of the output's shape, of kind KIND; zeros without a read if there is no array. first: its element (0, 0);
// strides are in elements.
template <class R, int KIND>
struct Addend {
    const R* first;
    int64 row_stride, col_stride;

    __device__ __forceinline__ const R* at(int64 row, int64 col) const {
        if constexpr (KIND == kAdjacentRows) return first + (row + col * col_stride);
        if constexpr (KIND == kAdjacentColumns || KIND == kColumnPairs) return first + (row * row_stride + col);
        return first + (row * row_stride + col * col_stride);
    }

    // The part of the array that begins at (row, col).
    __device__ __forceinline__ Addend from(int64 row, int64 col) const {
        if constexpr (KIND == kNoArray) return *this;
        return {kept(at(row, col)), row_stride, col_stride};
    }

    // An element, or 0 if it is not `inside` the array.
    __device__ __forceinline__ float value(int64 row, int64 col, bool inside) const {
        if constexpr (KIND == kNoArray) return 0.0f;
        return inside ? static_cast<float>(*at(row, col)) : 0.0f;
    }

    // The elements (row, col) and (row, col + 1); the first one is in an even column of the whole array. left: columns
    // of the row that are inside.
    __device__ __forceinline__ float2 pair(int64 row, int64 col, int left) const {
        if constexpr (KIND == kColumnPairs) return col < left ? pair_at(at(row, col)) : float2{};
        return make_float2(value(row, col, col < left), value(row, col + 1, col + 1 < left));
    }
};

// The arrays and factors that a kernel applies to its sums. B: type of the bias, R: type of c, of the residual and of
// the output. C, RESIDUAL: the kinds of c and of the residual. The pointer of a missing array is not read.
//
// Pointers are to element (0, 0) of one product (of a batch). Strides are in elements, 0 along an axis on which the
// bias is broadcast.
template <class B, class R, int ACTIVATION, int C, int BIAS, int RESIDUAL>
struct Epilogue {
    static constexpr int kActivation = ACTIVATION % kScaled;
    static constexpr bool kScales = ACTIVATION >= kScaled;
    static_assert(ACTIVATION / kScaled <= 1 && kActivation <= kSilu, "an unknown activation");
    static constexpr int kBias = BIAS;
    static constexpr bool kBiasOfColumns = BIAS == kBiasPerColumn || BIAS == kBiasPairs;

    Addend<R, C> c;
    const B* bias;
    int64 bias_row, bias_col;
    Addend<R, RESIDUAL> residual;
    float alpha, beta, scale;

    // The epilogue of the part of the output that begins at (row, col).
    __device__ __forceinline__ Epilogue from(int64 row, int64 col) const {
        Epilogue part = *this;
        part.c = c.from(row, col);
        if constexpr (BIAS == kAnyBias) part.bias = kept(bias + (row * bias_row + col * bias_col));
        if constexpr (BIAS == kBiasPerRow) part.bias += row * bias_row;
        if constexpr (kBiasOfColumns) part.bias += col;
        part.residual = residual.from(row, col);
        return part;
    }

    // The numbers that the epilogue reads for an element of the output.
    struct Added {
        float c, bias, residual;
    };

    __device__ __forceinline__ float bias_at(int64 row, int64 col) const {
        if constexpr (BIAS == kBiasPerRow) return static_cast<float>(bias[row * bias_row]);
        if constexpr (kBiasOfColumns) return static_cast<float>(bias[col]);
        return static_cast<float>(bias[row * bias_row + col * bias_col]);
    }

    // The bias of columns col and col + 1, if there is a bias per column; the first one is even, counted from the
    // output's first column. left: columns that are within the output.
    __device__ __forceinline__ float2 bias_pair(int64 col, int left) const {
        if constexpr (BIAS == kBiasPairs) return col < left ? pair_at(bias + col) : float2{};
        return make_float2(bias_if(0, col, true, col < left), bias_if(0, col + 1, true, col + 1 < left));
    }

    // in_rows, in_cols: whether (row, col) is within the output; otherwise nothing is read there.
    __device__ __forceinline__ Added added(int64 row, int64 col, bool in_rows, bool in_cols) const {
        const bool inside = in_rows && in_cols;
        const float of_bias = bias_if(row, col, in_rows, in_cols);
        return {c.value(row, col, inside), of_bias, residual.value(row, col, inside)};
    }

    // The same for (row, col) and (row, col + 1), of which the first column is even, counted from the output's first
    // one. left: columns of the row that are within the output, 0 if the row is not: one comparison per load. A bias
    // per row or column, which serves several elements, is not read.
    __device__ __forceinline__ void added(Added (&read)[2], int64 row, int64 col, int left) const {
        const float2 of_c = c.pair(row, col, left);
        float2 of_bias = {};
        if constexpr (BIAS == kAnyBias)
            of_bias = make_float2(bias_if(row, col, true, col < left), bias_if(row, col + 1, true, col + 1 < left));
        const float2 of_residual = residual.pair(row, col, left);
        read[0] = {of_c.x, of_bias.x, of_residual.x};
        read[1] = {of_c.y, of_bias.y, of_residual.y};
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
        if constexpr (C != kNoArray) value = fmaf(kSplit ? beta : scale * beta, read.c, value);
        if constexpr (BIAS != kNoBias) value += read.bias;
        value = activated(value);
        if constexpr (kSplit && kScales && RESIDUAL != kNoArray) return fmaf(scale, value, read.residual);
        if constexpr (kSplit && kScales) return scale * value;
        if constexpr (RESIDUAL != kNoArray) return value + read.residual;
        return value;
    }

  private:
    __device__ __forceinline__ float bias_if(int64 row, int64 col, bool in_rows, bool in_cols) const {
        if constexpr (BIAS == kBiasPerRow) return in_rows ? bias_at(row, 0) : 0.0f;
        if constexpr (kBiasOfColumns) return in_cols ? bias_at(0, col) : 0.0f;
        if constexpr (BIAS == kAnyBias) return in_rows && in_cols ? bias_at(row, col) : 0.0f;
        return 0.0f;
    }

    static __device__ __forceinline__ float activated(float x) {
        if constexpr (kActivation == kRelu) return at_least(x, 0.0f);
        if constexpr (kActivation == kGelu && RESIDUAL == kNoArray) return gelu<R>(x);
        if constexpr (kActivation == kGelu) return gelu<float>(x);  // a residual may cancel all but its error
        if constexpr (kActivation == kGeluTanh) return gelu_tanh(x);
        if constexpr (kActivation == kSilu) return silu(x);
        return x;
    }
};
