// The mean of each bucket's integers. Wrong: an empty bucket is divided by 0.
// sums, counts, y: (n,)
__global__ void wrong(const int* sums, const int* counts, int* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i] = sums[i] / counts[i];  // BUG
}

__global__ void right(const int* sums, const int* counts, int* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i] = counts[i] ? sums[i] / counts[i] : 0;
}
