// The largest value of a block by a tree. Wrong: treats the 96 threads as a power of two, and reads up to 128 cells.
// x: (gridDim.x, 96), y: (gridDim.x,); block: 96
__global__ void wrong(const int* x, int* y) {
    __shared__ int best[128];
    const int t = threadIdx.x;
    best[t] = x[blockIdx.x * 96 + t];
    for (int half = 64; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) best[t] = max(best[t], best[t + half]);  // BUG
    }
    if (t == 0) y[blockIdx.x] = best[0];
}

__global__ void right(const int* x, int* y) {
    __shared__ int best[128];
    const int t = threadIdx.x;
    best[t] = x[blockIdx.x * 96 + t];
    for (int count = 96; count > 1; count = (count + 1) / 2) {
        __syncthreads();
        const int half = (count + 1) / 2;
        if (t + half < count) best[t] = max(best[t], best[t + half]);
    }
    if (t == 0) y[blockIdx.x] = best[0];
}
