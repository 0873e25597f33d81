// The distance of points from the unit circle's centre along y. Wrong: 1 - x^2 is a little less than 0 by rounding.
// x, y: (n,)
__global__ void wrong(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float rest = 1.0f - x[i] * x[i];
    y[i] = sqrtf(rest);  // BUG
}

__global__ void right(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float rest = 1.0f - x[i] * x[i];
    y[i] = sqrtf(fmaxf(rest, 0.0f));
}
