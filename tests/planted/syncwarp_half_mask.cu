// The lower half of a warp reads what the upper half stored. Wrong: the mask of __syncwarp names only the readers.
// x: (32,), y: (16,): y[t] = x[t] + x[t + 16]; one block of 32
__global__ void wrong(const float* x, float* y) {
    __shared__ float values[32];
    const int t = threadIdx.x;
    values[t] = x[t];  // OTHER
    if (t < 16) {
        __syncwarp(0x0000ffff);
        y[t] = values[t] + values[t + 16];  // BUG
    }
}

__global__ void right(const float* x, float* y) {
    __shared__ float values[32];
    const int t = threadIdx.x;
    values[t] = x[t];
    __syncwarp();
    if (t < 16) {
        const float own = values[t];
        __syncwarp(0x0000ffff);
        y[t] = own + values[t + 16];
    }
}
