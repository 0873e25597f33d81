// Warp 0 scales tiles into two buffers, warp 1 adds them up reversed; barriers 1 and 2 mean that a buffer is full, 3
// and 4 that it is empty. Wrong: the producer stores before it waits for the buffer to be empty.
// x: (tiles, 32), y: (32,): y[t] = sum over i of 2 * x[i][31 - t]; one block of 64
#include "sync.cuh"

__global__ void wrong(const float* x, float* y, int tiles) {
    __shared__ float buffer[2][32];
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        for (int i = 0; i < tiles; ++i) {
            buffer[i % 2][lane] = 2.0f * x[i * 32 + lane];  // BUG, OTHER
            if (i >= 2) bar_sync(3 + i % 2, 64);
            bar_arrive(1 + i % 2, 64);
        }
    } else {
        float sum = 0.0f;
        for (int i = 0; i < tiles; ++i) {
            bar_sync(1 + i % 2, 64);
            sum += buffer[i % 2][31 - lane];  // BUG, OTHER
            if (i + 2 < tiles) bar_arrive(3 + i % 2, 64);
        }
        y[lane] = sum;
    }
}

__global__ void right(const float* x, float* y, int tiles) {
    __shared__ float buffer[2][32];
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        for (int i = 0; i < tiles; ++i) {
            if (i >= 2) bar_sync(3 + i % 2, 64);
            buffer[i % 2][lane] = 2.0f * x[i * 32 + lane];
            bar_arrive(1 + i % 2, 64);
        }
    } else {
        float sum = 0.0f;
        for (int i = 0; i < tiles; ++i) {
            bar_sync(1 + i % 2, 64);
            sum += buffer[i % 2][31 - lane];
            if (i + 2 < tiles) bar_arrive(3 + i % 2, 64);
        }
        y[lane] = sum;
    }
}
