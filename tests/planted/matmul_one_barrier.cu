// A tiled matrix product. Wrong: no barrier between reading a tile and overwriting it with the next one.
// a, b, c: (n, n) row by row, n a multiple of 16; block: (16, 16), grid: (n / 16, n / 16)
constexpr int kTile = 16;

__global__ void wrong(const float* a, const float* b, float* c, int n) {
    __shared__ float tile_a[kTile][kTile], tile_b[kTile][kTile];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * kTile + ty, col = blockIdx.x * kTile + tx;
    float sum = 0.0f;
    for (int k = 0; k < n; k += kTile) {
        tile_a[ty][tx] = a[row * n + k + tx];    // BUG
        tile_b[ty][tx] = b[(k + ty) * n + col];  // BUG
        __syncthreads();
        for (int i = 0; i < kTile; ++i) sum += tile_a[ty][i] * tile_b[i][tx];  // OTHER
    }
    c[row * n + col] = sum;
}

__global__ void right(const float* a, const float* b, float* c, int n) {
    __shared__ float tile_a[kTile][kTile], tile_b[kTile][kTile];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * kTile + ty, col = blockIdx.x * kTile + tx;
    float sum = 0.0f;
    for (int k = 0; k < n; k += kTile) {
        tile_a[ty][tx] = a[row * n + k + tx];
        tile_b[ty][tx] = b[(k + ty) * n + col];
        __syncthreads();
        for (int i = 0; i < kTile; ++i) sum += tile_a[ty][i] * tile_b[i][tx];
        __syncthreads();
    }
    c[row * n + col] = sum;
}
