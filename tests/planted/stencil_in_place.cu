// One step of smoothing. Wrong: in place, with a block barrier, which does not order neighbouring blocks.
// x, y: (n,): y[i] = x[i - 1] + 2 * x[i] + x[i + 1], with 0 outside; block: 64
__global__ void wrong(float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float value = 0.0f;
    if (i < n) {
        value = 2.0f * x[i];
        if (i > 0) value += x[i - 1];      // OTHER
        if (i + 1 < n) value += x[i + 1];  // OTHER
    }
    __syncthreads();
    if (i < n) x[i] = value;  // BUG
    if (i < n) y[i] = value;
}

__global__ void right(float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float value = 2.0f * x[i];
    if (i > 0) value += x[i - 1];
    if (i + 1 < n) value += x[i + 1];
    y[i] = value;
}
