// The discrete Fourier transform by its definition: one thread per output, which sums n products. For any n.
//
// x, y: (outer, inner, n), with strides in elements; n is the length of the real side of a real transform, whose
// complex side has n / 2 + 1 terms. y may not be x.
//
// Bottleneck: n products per output, each with a sine and a cosine; the other variants need about log2(n) of them.
#include "butterflies.cuh"
#include "storage.cuh"
#include "strides.cuh"

enum Form { COMPLEX, FROM_REAL, TO_REAL };

// Element j of a row of n: of half a row of n / 2 + 1 terms for TO_REAL.
template <Form FORM, class T>
__device__ inline float2 element(const T* row, long long step, int n, int j) {
    using C = typename Complex<T>::type;
    if constexpr (FORM == FROM_REAL) {
        return {widened(row[j * step]), 0.0f};
    } else if constexpr (FORM == COMPLEX) {
        return widened(reinterpret_cast<const C*>(row)[j * step]);
    } else {
        const bool mirrored = 2 * j > n;
        const float2 z = widened(reinterpret_cast<const C*>(row)[(mirrored ? n - j : j) * step]);
        return mirrored ? conjugate(z) : z;
    }
}

// outputs: the elements per row of y; rows: outer * inner. Strides count real elements of a real array.
template <class T, Form FORM, bool INVERSE>
__global__ void direct(const T* x, T* y, int n, int outputs, long long inner, long long rows, Strides x_strides,
    Strides y_strides, float scale) {
    using C = typename Complex<T>::type;
    const long long id = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    const long long number = id / outputs;
    const int k = static_cast<int>(id % outputs);
    if (number >= rows) return;

    const long long first = x_strides.row(number, inner);
    const T* row = x + (FORM == FROM_REAL ? first : 2 * first);
    float2 sum = {0.0f, 0.0f};
    int turn = 0;  // j * k modulo n
    for (int j = 0; j < n; j++) {
        const int nearest = 2 * turn > n ? turn - n : turn;  // small angles have small rounding errors
        float sine, cosine;
        sincospif(2.0f * nearest / n, &sine, &cosine);
        sum = sum + element<FORM>(row, x_strides.step, n, j) * float2{cosine, INVERSE ? sine : -sine};
        turn = turn >= n - k ? turn - (n - k) : turn + k;
    }
    const long long place = y_strides.row(number, inner) + k * y_strides.step;
    if constexpr (FORM == TO_REAL) {
        narrowed(y[place], scale * sum.x);
    } else {
        narrowed(reinterpret_cast<C*>(y)[place], scale * sum);
    }
}

// y = x, complex; for a transform in place, whose result is in scratch memory.
template <class T>
__global__ void copy_rows(
    const T* x, T* y, int n, long long inner, long long rows, Strides x_strides, Strides y_strides) {
    using C = typename Complex<T>::type;
    const long long id = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    const long long number = id / n, k = id % n;
    if (number >= rows) return;
    reinterpret_cast<C*>(y)[y_strides.row(number, inner) + k * y_strides.step] =
        reinterpret_cast<const C*>(x)[x_strides.row(number, inner) + k * x_strides.step];
}
