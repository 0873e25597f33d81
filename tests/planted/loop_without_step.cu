// Copies values with a stride of the grid. Wrong: the loop does not advance.
// x, y: (n,); block: 32
__global__ void wrong(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    while (i < n) y[i] = x[i];  // BUG
}

__global__ void right(const float* x, float* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i];
}
