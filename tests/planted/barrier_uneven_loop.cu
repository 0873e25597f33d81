// Row sums, one block-sized step at a time, with a barrier per step. Wrong: threads past the end of the row leave the
// loop one step early and wait at the barrier after it.
// x: (gridDim.x, cols), y: (gridDim.x,); block: 64
__global__ void wrong(const int* x, int* y, int cols) {
    __shared__ int step[64], total;
    const int t = threadIdx.x;
    if (t == 0) total = 0;
    for (int c = t; c < cols; c += 64) {
        step[t] = x[blockIdx.x * cols + c];
        __syncthreads();  // BUG, OTHER
        if (t == 0)
            for (int i = 0; i < min(64, cols - c); ++i) total += step[i];
        __syncthreads();  // BUG, OTHER
    }
    __syncthreads();  // BUG, OTHER
    if (t == 0) y[blockIdx.x] = total;
}

__global__ void right(const int* x, int* y, int cols) {
    __shared__ int step[64], total;
    const int t = threadIdx.x;
    if (t == 0) total = 0;
    for (int first = 0; first < cols; first += 64) {
        step[t] = first + t < cols ? x[blockIdx.x * cols + first + t] : 0;
        __syncthreads();
        if (t == 0)
            for (int i = 0; i < 64; ++i) total += step[i];
        __syncthreads();
    }
    __syncthreads();
    if (t == 0) y[blockIdx.x] = total;
}
