// Two warps fill a table that all four use. Wrong: the two that fill it reach two barriers, the others one.
// x: (64,), y: (128,): y[t] = x[t % 64] + x[63 - t % 64]; one block of 128
__global__ void wrong(const int* x, int* y) {
    __shared__ int table[64];
    const int t = threadIdx.x;
    if (t < 64) {
        table[t] = x[t];
        __syncthreads();  // BUG, OTHER
    }
    __syncthreads();  // BUG, OTHER
    y[t] = table[t % 64] + table[63 - t % 64];
}

__global__ void right(const int* x, int* y) {
    __shared__ int table[64];
    const int t = threadIdx.x;
    if (t < 64) table[t] = x[t];
    __syncthreads();
    y[t] = table[t % 64] + table[63 - t % 64];
}
