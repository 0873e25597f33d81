// The running sums of a warp's 32 values in shared memory. Wrong: a lane adds to its cell before its neighbour has
// read it.
// x, y: (gridDim.x, 32); block: 32
__global__ void wrong(const int* x, int* y) {
    __shared__ int sums[32];
    const int t = threadIdx.x;
    sums[t] = x[blockIdx.x * 32 + t];
    __syncwarp();
    for (int distance = 1; distance < 32; distance *= 2) {
        const int before = t >= distance ? sums[t - distance] : 0;  // OTHER
        sums[t] += before;                                          // BUG
        __syncwarp();
    }
    y[blockIdx.x * 32 + t] = sums[t];
}

__global__ void right(const int* x, int* y) {
    __shared__ int sums[32];
    const int t = threadIdx.x;
    sums[t] = x[blockIdx.x * 32 + t];
    __syncwarp();
    for (int distance = 1; distance < 32; distance *= 2) {
        const int before = t >= distance ? sums[t - distance] : 0;
        __syncwarp();
        sums[t] += before;
        __syncwarp();
    }
    y[blockIdx.x * 32 + t] = sums[t];
}
