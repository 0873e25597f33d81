// c[i] = a[i] + b[i], 16 bytes a lane, with the hint that nothing of it will be used again soon.
//
// Parameters as in 04_vector_add_vec4.cu. __ldcs and __stcs mark lines to be evicted first: in a stream longer than the
// L2 every line is new, and one that stays only pushes out another that is still to be written back.
//
// Bound by: memory, 12 bytes an element. The hint is wrong for arrays that the next kernel would have found in the L2.
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
