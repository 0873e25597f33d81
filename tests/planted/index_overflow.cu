// Picks values by a multiplicative hash. Wrong: the product overflows 32 bits, and the remainder is negative.
// x, y: (n,): y[i] = x[i * 48271 mod n]
__global__ void wrong(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int from = i * 48271 % n;
    y[i] = x[from];  // BUG
}

__global__ void right(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int from = i * 48271ll % n;
    y[i] = x[from];
}
