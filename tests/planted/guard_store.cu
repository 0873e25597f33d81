// Scales an array. Wrong: the guard lets one thread too many through to the store.
// x, y: (n,)
__global__ void wrong(const float* x, float* y, float factor, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) {
        const float value = i < n ? x[i] : 0.0f;
        y[i] = factor * value;  // BUG
    }
}

__global__ void right(const float* x, float* y, float factor, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        const float value = i < n ? x[i] : 0.0f;
        y[i] = factor * value;
    }
}
