// The sum of n values by warps. Wrong: threads past the end return first, and the shuffles read their registers.
// x: (n,), y: (1,) of zeros; block: 64
__global__ void wrong(const int* x, int* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int sum = x[i];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);  // BUG
    if (threadIdx.x % 32 == 0) atomicAdd(y, sum);
}

__global__ void right(const int* x, int* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned members = __ballot_sync(0xffffffffu, i < n);
    if (i >= n) return;
    const int lane = threadIdx.x % 32, last = 31 - __clz(members);
    int sum = x[i];
    for (int step = 16; step > 0; step /= 2) {
        const int other = __shfl_down_sync(members, sum, step);
        if (lane + step <= last) sum += other;
    }
    if (lane == 0) atomicAdd(y, sum);
}
