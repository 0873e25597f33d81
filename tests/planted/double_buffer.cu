// Weighted sum of reversed tiles through two buffers, one barrier per tile. Wrong: the next tile is stored before the
// barrier, into the buffer that slower threads are still reading.
// x: (tiles, 128), y: (128,): y[t] = sum over i of (i + 1) * x[i][127 - t]; one block of 128
constexpr int kTile = 128;

__global__ void wrong(const float* x, float* y, int tiles) {
    __shared__ float buffer[2][kTile];
    const int t = threadIdx.x;
    buffer[0][t] = x[t];
    float sum = 0.0f;
    for (int i = 0; i < tiles; ++i) {
        if (i + 1 < tiles) buffer[(i + 1) % 2][t] = x[(i + 1) * kTile + t];  // BUG
        __syncthreads();
        sum += (i + 1) * buffer[i % 2][kTile - 1 - t];  // OTHER
    }
    y[t] = sum;
}

__global__ void right(const float* x, float* y, int tiles) {
    __shared__ float buffer[2][kTile];
    const int t = threadIdx.x;
    buffer[0][t] = x[t];
    float sum = 0.0f;
    for (int i = 0; i < tiles; ++i) {
        __syncthreads();  // this tile is visible, and all threads have read the other buffer
        if (i + 1 < tiles) buffer[(i + 1) % 2][t] = x[(i + 1) * kTile + t];
        sum += (i + 1) * buffer[i % 2][kTile - 1 - t];
    }
    y[t] = sum;
}
