// Scales by per-channel factors, if given. Wrong: the table is read without a check for a null pointer.
// x, y: (n,), factors: (channels,) or null; channels is a power of two
__global__ void wrong(const float* x, const float* factors, float* y, int channels, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * factors[i & (channels - 1)];  // BUG
}

__global__ void right(const float* x, const float* factors, float* y, int channels, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factors != nullptr ? x[i] * factors[i & (channels - 1)] : x[i];
}
