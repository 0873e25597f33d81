// The sum of each row, one thread per column, by a tree over the whole block. Wrong: threads past the end of the row
// store nothing, but the tree reads their cells.
// x: (gridDim.x, cols), y: (gridDim.x,); block: 128, cols less than 128
__global__ void wrong(const float* x, float* y, int cols) {
    __shared__ float partial[128];
    const int t = threadIdx.x;
    if (t < cols) partial[t] = x[blockIdx.x * cols + t];
    for (int half = 64; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) partial[t] += partial[t + half];  // BUG
    }
    if (t == 0) y[blockIdx.x] = partial[0];
}

__global__ void right(const float* x, float* y, int cols) {
    __shared__ float partial[128];
    const int t = threadIdx.x;
    partial[t] = t < cols ? x[blockIdx.x * cols + t] : 0.0f;
    for (int half = 64; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) partial[t] += partial[t + half];
    }
    if (t == 0) y[blockIdx.x] = partial[0];
}
