// The sum of each row by a block, through shared memory. Wrong: the threads' sums start without a value.
// x: (gridDim.x, n), y: (gridDim.x,); block: 64
__device__ __forceinline__ void reduce(float sum, float* y) {
    __shared__ float partial[64];
    const int t = threadIdx.x;
    partial[t] = sum;
    __syncthreads();
    for (int half = 32; half > 0; half /= 2) {
        if (t < half) partial[t] += partial[t + half];
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = partial[0];
}

__global__ void wrong(const float* x, float* y, int n) {
    float sum;
    for (int i = threadIdx.x; i < n; i += 64) sum += x[blockIdx.x * n + i];  // BUG
    reduce(sum, y);
}

__global__ void right(const float* x, float* y, int n) {
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += 64) sum += x[blockIdx.x * n + i];
    reduce(sum, y);
}
