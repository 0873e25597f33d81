// Weighted sum of reversed tiles, three in flight at most. Wrong: the wait allows two groups in flight, and one of them
// may be the tile that is used next.
// x: (tiles, 64), y: (64,): y[t] = sum over i of (i + 1) * x[i][63 - t]; one block of 64
#include "sync.cuh"

constexpr int kTile = 64, kStages = 3;

__global__ void wrong(const float* x, float* y, int tiles) {
    __shared__ float stages[kStages][kTile];
    const int t = threadIdx.x;
    for (int i = 0; i < kStages - 1; ++i) {
        if (i < tiles) copy_async<4>(&stages[i][t], &x[i * kTile + t]);  // OTHER
        copy_async_commit();
    }
    float sum = 0.0f;
    for (int i = 0; i < tiles; ++i) {
        copy_async_wait_for<kStages - 1>();
        __syncthreads();
        const int next = i + kStages - 1;
        if (next < tiles) copy_async<4>(&stages[next % kStages][t], &x[next * kTile + t]);
        copy_async_commit();
        sum += (i + 1) * stages[i % kStages][kTile - 1 - t];  // BUG
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
        sum += (i + 1) * stages[i % kStages][kTile - 1 - t];
    }
    y[t] = sum;
}
