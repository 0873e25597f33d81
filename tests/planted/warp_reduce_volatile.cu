// The last steps of a sum in shared memory by one warp. Wrong: volatile takes the place of __syncwarp(), as in code for
// GPUs before Volta.
// x: (gridDim.x, 64), y: (gridDim.x,); block: 64
__global__ void wrong(const float* x, float* y) {
    __shared__ float partial[64];
    const int t = threadIdx.x;
    partial[t] = x[blockIdx.x * 64 + t];
    __syncthreads();
    if (t < 32) {
        volatile float* shares = partial;
        shares[t] += shares[t + 32];  // OTHER
        shares[t] += shares[t + 16];  // BUG, OTHER
        shares[t] += shares[t + 8];   // BUG, OTHER
        shares[t] += shares[t + 4];
        shares[t] += shares[t + 2];
        shares[t] += shares[t + 1];
    }
    if (t == 0) y[blockIdx.x] = partial[0];
}

__global__ void right(const float* x, float* y) {
    __shared__ float partial[64];
    const int t = threadIdx.x;
    partial[t] = x[blockIdx.x * 64 + t];
    __syncthreads();
    if (t < 32) {
        float sum = partial[t];
        for (int step = 32; step > 0; step /= 2) {
            const float other = partial[t + step];
            __syncwarp();
            partial[t] = sum += other;
            __syncwarp();
        }
    }
    if (t == 0) y[blockIdx.x] = partial[0];
}
