// A five-point smoothing of a line through a tile with a halo of two cells. Wrong: at the ends of the line the halo is
// not initialised.
// x, y: (n,), with 0 outside; block: 64
constexpr int kBlock = 64, kHalo = 2;

__global__ void wrong(const float* x, float* y, int n) {
    __shared__ float tile[kBlock + 2 * kHalo];
    const int first = blockIdx.x * kBlock - kHalo;
    for (int i = threadIdx.x; i < kBlock + 2 * kHalo; i += kBlock)
        if (first + i >= 0 && first + i < n) tile[i] = x[first + i];
    __syncthreads();
    const int at = blockIdx.x * kBlock + threadIdx.x;
    if (at >= n) return;
    float sum = 0.0f;
    for (int k = 0; k <= 2 * kHalo; ++k) sum += tile[threadIdx.x + k];  // BUG
    y[at] = sum;
}

__global__ void right(const float* x, float* y, int n) {
    __shared__ float tile[kBlock + 2 * kHalo];
    const int first = blockIdx.x * kBlock - kHalo;
    for (int i = threadIdx.x; i < kBlock + 2 * kHalo; i += kBlock)
        tile[i] = first + i >= 0 && first + i < n ? x[first + i] : 0.0f;
    __syncthreads();
    const int at = blockIdx.x * kBlock + threadIdx.x;
    if (at >= n) return;
    float sum = 0.0f;
    for (int k = 0; k <= 2 * kHalo; ++k) sum += tile[threadIdx.x + k];
    y[at] = sum;
}
