// The fragments that ldmatrix loads from a padded tile. Wrong: rows of 9 values are not multiples of 16 bytes.
// x: (8, 8), y: (32,): y[t] = the pair of lane t; one block of 32
#include <cuda_fp16.h>

template <int PITCH>
__device__ __forceinline__ void fragments(const __half* x, unsigned* y) {
    __shared__ alignas(16) __half tile[8 * PITCH];
    const int t = threadIdx.x;
    for (int i = t; i < 64; i += 32) tile[i / 8 * PITCH + i % 8] = x[i];
    __syncwarp();
    const unsigned row = static_cast<unsigned>(__cvta_generic_to_shared(&tile[t % 8 * PITCH]));
    unsigned part;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(part) : "r"(row) : "memory");  // BUG
    y[t] = part;
}

__global__ void wrong(const __half* x, unsigned* y) {
    fragments<9>(x, y);
}

__global__ void right(const __half* x, unsigned* y) {
    fragments<16>(x, y);
}
