// The sum of each row by a tree in shared memory. Wrong: no barrier between the levels of the tree.
// x: (gridDim.x, blockDim.x), y: (gridDim.x,); blockDim.x a power of two, shared: 4 * blockDim.x bytes
__global__ void wrong(const float* x, float* y) {
    extern __shared__ float partial[];
    const unsigned t = threadIdx.x;
    partial[t] = x[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half) partial[t] += partial[t + half];  // BUG, OTHER
    }
    if (t == 0) y[blockIdx.x] = partial[0];
}

__global__ void right(const float* x, float* y) {
    extern __shared__ float partial[];
    const unsigned t = threadIdx.x;
    partial[t] = x[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (t < half) partial[t] += partial[t + half];
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = partial[0];
}
