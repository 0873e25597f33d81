// A three-point stencil through a tile with a halo of one cell. Wrong: no barrier before the neighbours are read.
// x, y: (n,), values outside are 0; block: 64
constexpr int kBlock = 64;

__global__ void wrong(const float* x, float* y, int n) {
    __shared__ float tile[kBlock + 2];
    const int t = threadIdx.x, i = blockIdx.x * kBlock + t;
    tile[t + 1] = i < n ? x[i] : 0.0f;  // OTHER
    if (t == 0) tile[0] = i > 0 ? x[i - 1] : 0.0f;
    if (t == kBlock - 1) tile[kBlock + 1] = i + 1 < n ? x[i + 1] : 0.0f;
    if (i < n) y[i] = tile[t] + 2.0f * tile[t + 1] + tile[t + 2];  // BUG
}

__global__ void right(const float* x, float* y, int n) {
    __shared__ float tile[kBlock + 2];
    const int t = threadIdx.x, i = blockIdx.x * kBlock + t;
    tile[t + 1] = i < n ? x[i] : 0.0f;
    if (t == 0) tile[0] = i > 0 ? x[i - 1] : 0.0f;
    if (t == kBlock - 1) tile[kBlock + 1] = i + 1 < n ? x[i + 1] : 0.0f;
    __syncthreads();
    if (i < n) y[i] = tile[t] + 2.0f * tile[t + 1] + tile[t + 2];
}
