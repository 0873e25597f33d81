// Sum of reversed tiles through a ring of four stages. Wrong: a stage is refilled before the barrier, while slower
// threads still read it.
// x: (tiles, 128), y: (128,): y[t] = sum over i of x[i][127 - t] / (i + 1); one block of 128
#include "sync.cuh"

constexpr int kTile = 128, kStages = 4;

__global__ void wrong(const float* x, float* y, int tiles) {
    __shared__ float stages[kStages][kTile];
    const int t = threadIdx.x;
    for (int i = 0; i < kStages - 1; ++i) {
        if (i < tiles) copy_async<4>(&stages[i][t], &x[i * kTile + t]);
        copy_async_commit();
    }
    float sum = 0.0f;
    for (int i = 0; i < tiles; ++i) {
        const int next = i + kStages - 1;
        if (next < tiles) copy_async<4>(&stages[next % kStages][t], &x[next * kTile + t]);  // BUG
        copy_async_commit();
        copy_async_wait_for<kStages - 1>();
        __syncthreads();
        sum += stages[i % kStages][kTile - 1 - t] / (i + 1);  // OTHER
    }
    y[t] = sum;
}

__global__ void right(const float* x, float* y, int tiles) {
    __shared__ float stages[kStages][kTile];
    const int t = threadIdx.x;
    for (int i = 0; i < kStages - 1; ++i) {
        if (i < tiles) copy_async<4>(&stages[i][t], &x[i * kTile + t]);
        copy_async_commit();
    }
    float sum = 0.0f;
    for (int i = 0; i < tiles; ++i) {
        copy_async_wait_for<kStages - 2>();
        __syncthreads();
        const int next = i + kStages - 1;
        if (next < tiles) copy_async<4>(&stages[next % kStages][t], &x[next * kTile + t]);
        copy_async_commit();
        sum += stages[i % kStages][kTile - 1 - t] / (i + 1);
    }
    y[t] = sum;
}
