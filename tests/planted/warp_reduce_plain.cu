// The sum of a row by one warp in shared memory. Wrong: assumes that lanes run in lockstep, as they did before sm_70.
// x: (gridDim.x, 32), y: (gridDim.x,); block: 32
__global__ void wrong(const float* x, float* y) {
    __shared__ float partial[32];
    const int t = threadIdx.x;
    partial[t] = x[blockIdx.x * 32 + t];
    __syncwarp();
    for (int half = 16; half > 0; half /= 2)
        if (t < half) partial[t] += partial[t + half];  // BUG, OTHER
    if (t == 0) y[blockIdx.x] = partial[0];
}

__global__ void right(const float* x, float* y) {
    __shared__ float partial[32];
    volatile float* shares = partial;
    const int t = threadIdx.x;
    shares[t] = x[blockIdx.x * 32 + t];
    __syncwarp();
    for (int half = 16; half > 0; half /= 2) {
        if (t < half) shares[t] += shares[t + half];
        __syncwarp();
    }
    if (t == 0) y[blockIdx.x] = shares[0];
}
