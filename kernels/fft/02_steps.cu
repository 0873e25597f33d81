// One step with radix 2 per launch: log2(n) launches, from the array to scratch memory, to and fro there, and to the
// result. One thread per butterfly.
//
// x, y: (rows, n), n a power of two, with strides in elements; rows = outer * inner. y may not be x, except for n = 2.
//
// Bottleneck: memory bandwidth, as every value is read and written in each of the log2(n) steps.
#include "steps.cuh"
#include "strides.cuh"

template <bool INVERSE>
__global__ void steps(const float2* x, float2* y, int n, int span, long long inner, long long rows, Strides x_strides,
    Strides y_strides, float scale) {
    const long long id = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    const long long number = id / (n / 2);
    if (number >= rows) return;
    x += x_strides.row(number, inner);
    y += y_strides.row(number, inner);
    radix_2<INVERSE>(
        static_cast<int>(id % (n / 2)), n, span, [&](int i) { return x[i * x_strides.step]; },
        [&](int i, float2 z) { y[i * y_strides.step] = scale * z; });
}
