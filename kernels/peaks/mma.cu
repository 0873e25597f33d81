// Measures the peak tensor-core rate of mma.sync: bfloat16 products, float sums, operands always in registers.
//
// Each warp holds 4 A tiles (16 x 16), 4 B tiles (16 x 8) and their 16 products (16 x 8). Each step adds all 16
// products to their sums. Elements are 1 + noise / 128 with up to 7 random bits: multiplying only ones or zeros uses
// less power, raises the clock and shows a peak that real data never reaches.
//
// Bottleneck: the tensor pipe. On sm_90a, wgmma is faster: it reads its operands from shared memory.
#include "../common/mma.cuh"

constexpr int kTiles = 4;

// Two bfloat16 in [1, 2); 1.0 if `noise` has no bits set.
__device__ __forceinline__ unsigned ones(unsigned noise) {
    return 0x3f803f80u | (noise & 0x007f007fu);
}

// out: (threads,), one sum per thread; any 1-D grid, block: whole warps. noise: 0, or a seed for the elements
__global__ void __launch_bounds__(256) mma_chains(float* out, unsigned noise, int steps) {
    unsigned a[kTiles][4], b[kTiles][2];
    float c[kTiles][kTiles][4] = {};
    const unsigned own = noise * (threadIdx.x + 1);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) a[i][e] = ones(own * (4 * i + e + 1));
#pragma unroll
        for (int e = 0; e < 2; ++e) b[i][e] = ones(own * (2 * i + e + 17));
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
#pragma unroll
            for (int j = 0; j < kTiles; ++j) multiply_add<__nv_bfloat16>(c[i][j], a[i], b[j][0], b[j][1]);
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int j = 0; j < kTiles; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum += c[i][j][e];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
