// One launch: a block per row does all steps with radix 2 in shared memory, with a barrier after each.
//
// x, y: (rows, n), n a power of two, with strides in elements; y may be x. Dynamic shared memory: 2 n values.
//
// Bottleneck: shared memory and barriers: log2(n) steps of one butterfly per thread.
#include "steps.cuh"
#include "strides.cuh"

template <bool INVERSE>
__global__ void shared_steps(
    const float2* x, float2* y, int n, long long inner, Strides x_strides, Strides y_strides, float scale) {
    extern __shared__ float2 values[];
    float2 *from = values, *to = values + n;
    x += x_strides.row(blockIdx.x, inner);
    y += y_strides.row(blockIdx.x, inner);

    for (int i = threadIdx.x; i < n; i += blockDim.x) from[i] = x[i * x_strides.step];
    for (int span = 1; span < n; span *= 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
            radix_2<INVERSE>(
                i, n, span, [&](int place) { return from[place]; }, [&](int place, float2 z) { to[place] = z; });
        }
        float2* const results = to;
        to = from;
        from = results;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i * y_strides.step] = scale * from[i];
}
