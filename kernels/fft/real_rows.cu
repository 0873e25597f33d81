// Rows of a real transform as complex rows and back, for lengths whose real transform does not fit a block.
//
// The adjacent pairs of a real row are n / 2 complex values, whose transform has all that is needed (to_terms,
// from_terms). If n is odd, or pairs are not aligned, the real row becomes a complex one of n values, which takes
// twice the work.
//
// x, y: (rows, n) real or (rows, n / 2 + 1) complex, with strides in elements; whole: (rows, n) and pairs: (rows,
// n / 2), contiguous complex floats; rows = outer * inner.
//
// Bottleneck: memory bandwidth.
#include "pairs.cuh"
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

// y = the first n / 2 + 1 terms of the transform of real rows, from the transform of their pairs. A thread has terms k
// and n / 2 - k.
template <class T>
__global__ void to_terms(const float2* pairs, T* y, int n, long long inner, long long rows, Strides y_strides) {
    using C = typename Complex<T>::type;
    const int m = n / 2;
    const OfThread element(m / 2 + 1);
    if (element.number >= rows) return;
    const int k = element.at;
    const float2* z = pairs + element.number * m;
    C* to = reinterpret_cast<C*>(y) + y_strides.row(element.number, inner);
    const float2 a = z[k], b = conjugate(z[k == 0 ? 0 : m - k]);
    const Terms terms = terms_of_pairs(a, b, turn_of(k, n));
    narrowed(to[k * y_strides.step], terms.low);
    if (2 * k != m) narrowed(to[(m - k) * y_strides.step], terms.high);
}

// pairs = the values whose inverse transform has the pairs of a real row, from its n / 2 + 1 terms x. Imaginary parts
// of terms that must be real are ignored.
template <class T>
__global__ void from_terms(const T* x, float2* pairs, int n, long long inner, long long rows, Strides x_strides) {
    using C = typename Complex<T>::type;
    const int m = n / 2;
    const OfThread element(m / 2 + 1);
    if (element.number >= rows) return;
    const int k = element.at;
    const C* from = reinterpret_cast<const C*>(x) + x_strides.row(element.number, inner);
    float2* z = pairs + element.number * m;
    float2 a = widened(from[k * x_strides.step]), b = conjugate(widened(from[(m - k) * x_strides.step]));
    if (k == 0) a.y = b.y = 0.0f;
    const float2 w = turn_of(k, n);
    z[k] = pair_of_terms(a, b, w);
    if (k != 0 && 2 * k != m) z[m - k] = pair_of_terms(conjugate(b), conjugate(a), float2{-w.x, w.y});
}
