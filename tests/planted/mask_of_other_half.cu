// The sum of each half of a warp. Wrong: both halves pass the mask of the lower half.
// x: (gridDim.x, 32), y: (gridDim.x, 2); block: 32
__global__ void wrong(const int* x, int* y) {
    const int t = threadIdx.x, half = t / 16;
    int sum = x[blockIdx.x * 32 + t];
    for (int step = 8; step > 0; step /= 2) sum += __shfl_down_sync(0x0000ffffu, sum, step, 16);  // BUG
    if (t % 16 == 0) y[blockIdx.x * 2 + half] = sum;
}

__global__ void right(const int* x, int* y) {
    const int t = threadIdx.x, half = t / 16;
    int sum = x[blockIdx.x * 32 + t];
    const unsigned members = half == 0 ? 0x0000ffffu : 0xffff0000u;
    for (int step = 8; step > 0; step /= 2) sum += __shfl_down_sync(members, sum, step, 16);
    if (t % 16 == 0) y[blockIdx.x * 2 + half] = sum;
}
