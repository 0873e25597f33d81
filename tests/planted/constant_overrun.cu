// A convolution with weights in constant memory. Wrong: the loop runs one step past the 2 * radius + 1
// weights.
// x: (n + 8,), y: (n,): y[i] = sum over k of weights[k] * x[i + k]
constexpr int kRadius = 4;
__constant__ float weights[2 * kRadius + 1];

__global__ void wrong(const float* x, float* y, int taps, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0.0f;
    for (int k = 0; k <= taps; ++k) sum += weights[k] * x[min(i + k, n + 2 * kRadius - 1)];  // BUG
    y[i] = sum;
}

__global__ void right(const float* x, float* y, int taps, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0.0f;
    for (int k = 0; k < taps; ++k) sum += weights[k] * x[min(i + k, n + 2 * kRadius - 1)];
    y[i] = sum;
}
