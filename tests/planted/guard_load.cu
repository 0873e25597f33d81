// Differences of neighbours. Wrong: the last thread reads past the end.
// x: (n,), y: (n,), y[n - 1] is 0
__global__ void wrong(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i] = x[i + 1] - x[i];  // BUG
}

__global__ void right(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i] = x[min(i + 1, n - 1)] - x[i];
}
