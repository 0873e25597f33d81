// A block per row in shared memory, with radix 4: half as many steps and barriers as with radix 2, and three factors
// per four values instead of four.
//
// x, y: (rows, n), n a power of two, with strides in elements; y may be x. Dynamic shared memory: 2 n values.
// The inverse transform swaps real and imaginary parts at the first load and at the last store.
//
// Bottleneck: shared memory and barriers: log4(n) steps, and a step with radix 2 if log2(n) is odd.
#include "steps.cuh"
#include "strides.cuh"

__device__ inline void radix_4(int i, int n, int span, const float2* from, float2* to) {
    const int k = i % span;
    const float2 w = root<false>(k, 4 * span), w2 = w * w;
    float2 x[] = {from[i], w * from[i + n / 4], w2 * from[i + n / 2], w2 * w * from[i + 3 * (n / 4)]};
    dft<4>(x);
    const int first = (i - k) * 4 + k;
    for (int r = 0; r < 4; r++) to[first + r * span] = x[r];
}

template <bool INVERSE>
__global__ void radix4(
    const float2* x, float2* y, int n, long long inner, Strides x_strides, Strides y_strides, float scale) {
    extern __shared__ float2 values[];
    float2 *from = values, *to = values + n;
    x += x_strides.row(blockIdx.x, inner);
    y += y_strides.row(blockIdx.x, inner);

    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float2 z = x[i * x_strides.step];
        from[i] = INVERSE ? swapped(z) : z;
    }
    for (int span = 1; span < n;) {
        __syncthreads();
        if (4 * span <= n) {
            for (int i = threadIdx.x; i < n / 4; i += blockDim.x) radix_4(i, n, span, from, to);
            span *= 4;
        } else {
            for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
                radix_2<false>(
                    i, n, span, [&](int place) { return from[place]; }, [&](int place, float2 z) { to[place] = z; });
            }
            span = n;
        }
        float2* const results = to;
        to = from;
        from = results;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float2 z = scale * from[i];
        y[i * y_strides.step] = INVERSE ? swapped(z) : z;
    }
}
