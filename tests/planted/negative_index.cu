// The mean of three neighbours on a grid of rows. Wrong: the first cell's left neighbour is read at index -1.
// x, y: (n,), with the edge cells repeated outside
__global__ void wrong(const double* x, double* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const double left = x[i - 1], right = x[min(i + 1, n - 1)];  // BUG
    y[i] = (left + x[i] + right) / 3.0;
}

__global__ void right(const double* x, double* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const double left = x[max(i - 1, 0)], right = x[min(i + 1, n - 1)];
    y[i] = (left + x[i] + right) / 3.0;
}
