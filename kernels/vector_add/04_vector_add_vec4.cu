// c[i] = a[i] + b[i] with float4: four elements per thread, 16 bytes per lane and load. One thread adds the last n % 4.
//
// a, b, c are (n,), contiguous and 16-byte aligned: an unaligned float4 access faults.
//
// Bottleneck: memory bandwidth, 12 bytes per element, with a quarter of the threads and load instructions of 01.
#include "../common/numbers.cuh"

// a, b, c: (n,); grid: ceil(ceil(n / 4) / blockDim.x), any 1-D block
__global__ void vector_add_vec4(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int64 n) {
    const int64 group = global_thread();
    const int64 groups = n / 4;
    if (group < groups) {
        const float4 p = reinterpret_cast<const float4*>(a)[group], q = reinterpret_cast<const float4*>(b)[group];
        reinterpret_cast<float4*>(c)[group] = make_float4(p.x + q.x, p.y + q.y, p.z + q.z, p.w + q.w);
    } else if (group == groups) {
        for (int64 i = groups * 4; i < n; ++i) c[i] = a[i] + b[i];
    }
}
