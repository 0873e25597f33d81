// Kernels with few threads, or with barriers that are not __syncthreads(): test cases for a simulator's speed.
//
// Bottleneck: the cost of an instruction that does not depend on its number of threads.
#include <cooperative_groups.h>

// x, y: (n); grid: 1, block: 32. y[i] = s, s = s / 2 + x[i] + x[i ^ 1], with a sum s per lane; n is a multiple of 32.
__global__ void one_warp(const float* x, float* y, int n) {
    __shared__ float loaded[32];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) {
        loaded[threadIdx.x] = x[i];
        __syncwarp();
        sum = 0.5f * sum + x[i] + loaded[threadIdx.x ^ 1];
        y[i] = sum;
        __syncwarp();
    }
}

// x, y: (4, 256); grid: 4, block: 256. In each round, two warps average their values at a barrier of their own.
__global__ void named_barriers(const float* x, float* y, int rounds) {
    __shared__ float exchanged[256];
    const int barrier = 1 + threadIdx.x / 64;  // 0 is the number of __syncthreads()
    float value = x[blockIdx.x * 256 + threadIdx.x];
    for (int round = 0; round < rounds; ++round) {
        exchanged[threadIdx.x] = value;
        asm volatile("bar.sync %0, 64;" ::"r"(barrier) : "memory");
        value = 0.5f * (value + exchanged[threadIdx.x ^ 32]) + 1.0f;
        asm volatile("bar.sync %0, 64;" ::"r"(barrier) : "memory");
    }
    y[blockIdx.x * 256 + threadIdx.x] = value;
}

// x, a, b: (16 * 128); grid: 16, block: 128, cooperative. In each step, each element becomes the mean of its two
// neighbours, which are 0 past the ends: from x to a, then to b, to a and so on.
__global__ void grid_sync(const float* x, float* a, float* b, int steps) {
    const auto grid = cooperative_groups::this_grid();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int n = gridDim.x * blockDim.x;
    const float* from = x;
    for (int step = 0; step < steps; ++step) {
        float* to = step % 2 == 0 ? a : b;
        const float left = i > 0 ? from[i - 1] : 0.0f;
        const float right = i < n - 1 ? from[i + 1] : 0.0f;
        to[i] = 0.5f * (left + right);
        grid.sync();
        from = to;
    }
}
