// The smaller root of x^2 + b x + c. Wrong: b and the root of the discriminant cancel.
// b, c, y: (n,)
__global__ void wrong(const float* b, const float* c, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float root = sqrtf(b[i] * b[i] - 4.0f * c[i]);
    y[i] = (root - b[i]) / 2.0f;  // BUG
}

__global__ void right(const float* b, const float* c, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float root = sqrtf(b[i] * b[i] - 4.0f * c[i]);
    y[i] = -2.0f * c[i] / (b[i] + root);
}
