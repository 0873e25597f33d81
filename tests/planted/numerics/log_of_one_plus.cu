// log(1 + x) of small numbers. Wrong: 1 + x drops most digits of x, and the logarithm shows it.
// x, y: (n,)
__global__ void wrong(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = logf(1.0f + x[i]);  // BUG
}

__global__ void right(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = log1pf(x[i]);
}
