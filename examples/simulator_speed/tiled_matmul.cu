// Tiled matrix product, one thread per result: a test case for a simulator's speed, not a fast product.
//
// Bottleneck: two loads from shared memory per multiply-add.
constexpr int kTile = 16;

// a, b, c: (n, n), row major; grid: (ceil(n / 16), ceil(n / 16)), block: (16, 16)
__global__ void tiled_matmul(const float* a, const float* b, float* c, int n) {
    __shared__ float left[kTile][kTile];
    __shared__ float right[kTile][kTile];
    const int row = blockIdx.y * kTile + threadIdx.y;
    const int col = blockIdx.x * kTile + threadIdx.x;
    float sum = 0.0f;
    for (int start = 0; start < n; start += kTile) {
        const int across = start + threadIdx.x;
        const int down = start + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = row < n && across < n ? a[static_cast<long long>(row) * n + across] : 0.0f;
        right[threadIdx.y][threadIdx.x] = down < n && col < n ? b[static_cast<long long>(down) * n + col] : 0.0f;
        __syncthreads();
        for (int k = 0; k < kTile; ++k) sum += left[threadIdx.y][k] * right[k][threadIdx.x];
        __syncthreads();
    }
    if (row < n && col < n) c[static_cast<long long>(row) * n + col] = sum;
}
