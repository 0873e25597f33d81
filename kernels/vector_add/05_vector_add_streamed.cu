// c[i] = a[i] + b[i] with float4 and cache hints that the data will not be used again soon.
//
// Shapes as in 04_vector_add_vec4.cu. __ldcs and __stcs mark cache lines as evict-first. If the arrays are larger than
// the L2, no line is reused, and a line that stays only displaces one that must still be written back.
//
// Bottleneck: memory bandwidth, 12 bytes per element. Do not use the hints if the next kernel would find the arrays in
// L2.
#include "../common/numbers.cuh"

// a, b, c: (n,); grid: ceil(ceil(n / 4) / blockDim.x), any 1-D block
__global__ void vector_add_streamed(const float* a, const float* b, float* c, int64 n) {
    const int64 group = global_thread();
    const int64 groups = n / 4;
    if (group < groups) {
        const float4 p = __ldcs(reinterpret_cast<const float4*>(a) + group);
        const float4 q = __ldcs(reinterpret_cast<const float4*>(b) + group);
        __stcs(reinterpret_cast<float4*>(c) + group, make_float4(p.x + q.x, p.y + q.y, p.z + q.z, p.w + q.w));
    } else if (group == groups) {
        for (int64 i = groups * 4; i < n; ++i) c[i] = a[i] + b[i];
    }
}
