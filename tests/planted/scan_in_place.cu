// The running sums of a block's values, in place in shared memory. Wrong: one barrier per step; a step reads, then
// writes, so it needs two.
// x, y: (gridDim.x, blockDim.x); shared: 4 * blockDim.x bytes
__global__ void wrong(const int* x, int* y) {
    extern __shared__ int sums[];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    sums[t] = x[i];
    __syncthreads();
    for (int distance = 1; distance < blockDim.x; distance *= 2) {
        const int before = t >= distance ? sums[t - distance] : 0;  // OTHER
        sums[t] += before;                                          // BUG
        __syncthreads();
    }
    y[i] = sums[t];
}

__global__ void right(const int* x, int* y) {
    extern __shared__ int sums[];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    sums[t] = x[i];
    __syncthreads();
    for (int distance = 1; distance < blockDim.x; distance *= 2) {
        const int before = t >= distance ? sums[t - distance] : 0;
        __syncthreads();
        sums[t] += before;
        __syncthreads();
    }
    y[i] = sums[t];
}
