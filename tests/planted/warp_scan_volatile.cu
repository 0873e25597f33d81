// Prefix sums of a row by one warp. Wrong: the steps are ordered by volatile only.
// x, y: (gridDim.x, 32); block: 32
__global__ void wrong(const int* x, int* y) {
    __shared__ volatile int sums[32];
    const int t = threadIdx.x;
    int sum = x[blockIdx.x * 32 + t];
    for (int step = 1; step < 32; step *= 2) {
        sums[t] = sum;                         // BUG, OTHER
        if (t >= step) sum += sums[t - step];  // BUG, OTHER
    }
    y[blockIdx.x * 32 + t] = sum;
}

__global__ void right(const int* x, int* y) {
    __shared__ volatile int sums[32];
    const int t = threadIdx.x;
    int sum = x[blockIdx.x * 32 + t];
    for (int step = 1; step < 32; step *= 2) {
        sums[t] = sum;
        __syncwarp();
        if (t >= step) sum += sums[t - step];
        __syncwarp();
    }
    y[blockIdx.x * 32 + t] = sum;
}
