// Reports whether any value of a block is negative. Wrong: only the threads that hold a value call __syncthreads_or,
// which is a barrier of the whole block.
// x: (gridDim.x, n), y: (gridDim.x,), n less than blockDim.x
__global__ void wrong(const int* x, int* y, int n) {
    const int t = threadIdx.x;
    int any = 0;
    if (t < n) any = __syncthreads_or(x[blockIdx.x * n + t] < 0);  // BUG, OTHER
    __syncthreads();                                               // BUG, OTHER
    if (t == 0) y[blockIdx.x] = any != 0;
}

__global__ void right(const int* x, int* y, int n) {
    const int t = threadIdx.x;
    const int any = __syncthreads_or(t < n && x[blockIdx.x * n + t] < 0);
    __syncthreads();
    if (t == 0) y[blockIdx.x] = any != 0;
}
