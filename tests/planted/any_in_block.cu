// Reports whether a block holds a negative value. Wrong: each thread that finds one stores its own index. Correct: all
// store the same 1, which is harmless.
// x: (gridDim.x, 64), y: (gridDim.x,); block: 64
__global__ void wrong(const int* x, int* y) {
    __shared__ int found;
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    if (x[blockIdx.x * 64 + threadIdx.x] < 0) found = threadIdx.x + 1;  // BUG, OTHER
    __syncthreads();
    if (threadIdx.x == 0) y[blockIdx.x] = found;
}

__global__ void right(const int* x, int* y) {
    __shared__ int found;
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    if (x[blockIdx.x * 64 + threadIdx.x] < 0) found = 1;
    __syncthreads();
    if (threadIdx.x == 0) y[blockIdx.x] = found;
}
