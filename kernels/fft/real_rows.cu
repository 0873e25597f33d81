// Rows of a real transform as complex rows and back, for lengths whose real transform does not fit a block: the complex
// transform takes twice the work.
//
// x, y: (rows, n) real or (rows, n / 2 + 1) complex, with strides in elements; whole: (rows, n), contiguous complex
// floats; rows = outer * inner.
//
// Bottleneck: memory bandwidth.
#include "butterflies.cuh"
#include "storage.cuh"
#include "strides.cuh"

// The element of a thread: number `at` of row `number`, which may be past the last row.
struct OfThread {
    long long number;
    int at;
    __device__ explicit OfThread(int length) {
        const long long id = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
        number = id / length;
        at = static_cast<int>(id % length);
    }
};

// whole = x, real
template <class T>
__global__ void from_real(const T* x, float2* whole, int n, long long inner, long long rows, Strides x_strides) {
    const OfThread element(n);
    if (element.number >= rows) return;
    const float value = widened(x[x_strides.row(element.number, inner) + element.at * x_strides.step]);
    whole[element.number * n + element.at] = {value, 0.0f};
}

// whole = all terms of x, the first n / 2 + 1 of the transform of a real row. The imaginary parts of terms that must be
// real only add to the imaginary part of the result, which is not used.
template <class T>
__global__ void from_half(const T* x, float2* whole, int n, long long inner, long long rows, Strides x_strides) {
    using C = typename Complex<T>::type;
    const OfThread element(n);
    if (element.number >= rows) return;
    const int k = element.at, stored = 2 * k > n ? n - k : k;
    const float2 z =
        widened(reinterpret_cast<const C*>(x)[x_strides.row(element.number, inner) + stored * x_strides.step]);
    whole[element.number * n + k] = 2 * k > n ? conjugate(z) : z;
}

// y = the first n / 2 + 1 terms of whole
template <class T>
__global__ void to_half(const float2* whole, T* y, int n, long long inner, long long rows, Strides y_strides) {
    using C = typename Complex<T>::type;
    const OfThread element(n / 2 + 1);
    if (element.number >= rows) return;
    narrowed(reinterpret_cast<C*>(y)[y_strides.row(element.number, inner) + element.at * y_strides.step],
        whole[element.number * n + element.at]);
}

// y = the real part of whole
template <class T>
__global__ void to_real(const float2* whole, T* y, int n, long long inner, long long rows, Strides y_strides) {
    const OfThread element(n);
    if (element.number >= rows) return;
    narrowed(y[y_strides.row(element.number, inner) + element.at * y_strides.step],
        whole[element.number * n + element.at].x);
}
