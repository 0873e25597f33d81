// Reverses the first n values of each block. Wrong: the barrier is in a branch that only some lanes of a warp take.
// x, y: (gridDim.x, n), n at most blockDim.x; shared: 4 * blockDim.x bytes
__global__ void wrong(const int* x, int* y, int n) {
    extern __shared__ int values[];
    const int t = threadIdx.x;
    values[t] = 0;
    if (t < n) {
        values[t] = x[blockIdx.x * n + t];
        __syncthreads();  // BUG, OTHER
        y[blockIdx.x * n + t] = values[n - 1 - t];
    }
    __syncthreads();  // BUG, OTHER
    if (t == 0) values[0] = 0;
}

__global__ void right(const int* x, int* y, int n) {
    extern __shared__ int values[];
    const int t = threadIdx.x;
    values[t] = 0;
    if (t < n) values[t] = x[blockIdx.x * n + t];
    __syncthreads();
    if (t < n) y[blockIdx.x * n + t] = values[n - 1 - t];
    __syncthreads();
    if (t == 0) values[0] = 0;
}
