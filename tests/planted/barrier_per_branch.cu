// Two halves of a block exchange values. Wrong: each half has a __syncthreads() of its own.
// x, y: (gridDim.x, 64); block: 64
__global__ void wrong(const int* x, int* y) {
    __shared__ int values[64];
    const int t = threadIdx.x, i = blockIdx.x * 64 + t;
    if (t < 32) {
        values[t] = x[i];
        __syncthreads();  // BUG, OTHER
        y[i] = values[t + 32];
    } else {
        values[t] = 2 * x[i];
        __syncthreads();  // BUG, OTHER
        y[i] = values[t - 32] + 1;
    }
}

__global__ void right(const int* x, int* y) {
    __shared__ int values[64];
    const int t = threadIdx.x, i = blockIdx.x * 64 + t;
    values[t] = t < 32 ? x[i] : 2 * x[i];
    __syncthreads();
    y[i] = t < 32 ? values[t + 32] : values[t - 32] + 1;
}
