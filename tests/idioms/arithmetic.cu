// Loads, conversions, bit operations, templates and diagnostics.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__constant__ float weights[5];
__device__ int calls;

// float4 loads with hints for the cache, and a scalar tail.
// x, y: (n,), 16-byte aligned
__global__ void vector_tail(const float* __restrict__ x, float* y, int n) {
    const int first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    for (int i = first; i < n / 4; i += step) {
        float4 v = __ldcs(reinterpret_cast<const float4*>(x) + i);
        v.x += 1, v.y *= 2, v.z -= 3, v.w = -v.w;
        __stcg(reinterpret_cast<float4*>(y) + i, v);
    }
    for (int i = n / 4 * 4 + first; i < n; i += step) __stwt(y + i, __ldg(x + i) * 4);
}

template <int RADIUS, typename Combine>
__device__ __forceinline__ float around(const float* x, int i, int n, Combine combine) {
    float sum = 0;
#pragma unroll
    for (int k = -RADIUS; k <= RADIUS; ++k) sum = combine(sum, x[min(max(i + k, 0), n - 1)], k + RADIUS);
    return sum;
}

// A filter by a template with a lambda, whose weights are in constant memory.
// x, y: (n,)
__global__ void constant_filter(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i] = around<2>(x, i, n, [](float sum, float v, int k) { return sum + weights[k] * v; });
    if (threadIdx.x == 0) atomicAdd(&calls, 1);
}

// Two halves or bfloat16 numbers per operation.
// x: (n, 2) of half, z: (n, 2) of bfloat16, both changed in place
__global__ void packed_numbers(__half2* x, __nv_bfloat162* z, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    x[i] = __hfma2(x[i], __float2half2_rn(2.0f), __halves2half2(__float2half(1.0f), __float2half(-1.0f)));
    z[i] = __hmax2(__hadd2(z[i], z[i]), __float2bfloat162_rn(-3.0f));
}

union Bits {
    double number;
    unsigned words[2];
};

// Bits: funnel shift, byte permutation, dot product of bytes, counts, a union, inline PTX.
// a, b: (n,), y: (n, 7)
__global__ void bit_operations(const unsigned* a, const unsigned* b, unsigned* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned u = a[i], v = b[i];
    unsigned* o = y + 7 * i;
    o[0] = __funnelshift_l(u, v, v);
    o[1] = __byte_perm(u, v, 0x6142);
    o[2] = __dp4a(u, v, 7u);
    o[3] = __popc(u) + 100 * __clz(v) + 10000 * __ffs(u) + 1000000 * (__brev(v) >> 31);
    Bits bits;
    bits.number = static_cast<double>(u) + 0.5;
    o[4] = bits.words[1] ^ bits.words[0];
    asm("{ .reg .u32 low; mad.lo.u32 low, %1, %2, 5; xor.b32 %0, low, %1; }" : "=r"(o[5]) : "r"(u), "r"(v));
    o[6] = __umulhi(u, v) + __usad(u, v, 1u);
}

// A local array with an index known only at run time: the digits of a number, sorted by counting.
// x, y: (n,)
__global__ void local_digits(const unsigned* x, unsigned long long* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int counts[10] = {};
    for (unsigned rest = x[i]; rest > 0; rest /= 10) ++counts[rest % 10];
    unsigned long long sorted = 0;
    for (int digit = 9; digit >= 0; --digit)
        for (int k = 0; k < counts[digit]; ++k) sorted = 10 * sorted + digit;
    y[i] = sorted;
}

// Diagnostics in a kernel: clocks that advance, assertions that hold, output of one thread per block.
// y: (gridDim.x,)
__global__ void diagnostics(int* y, int limit) {
    const long long begun = clock64();
    assert(blockIdx.x < limit);
    int pauses = 0;
    for (unsigned pause = 8; pause < 100; pause *= 2, ++pauses) __nanosleep(pause);
    if (threadIdx.x == 0) {
        printf("block %d of %d\n", blockIdx.x, gridDim.x);
        y[blockIdx.x] = clock64() > begun ? pauses : -1;
    }
}
