// Reverses groups of eight lanes through shared memory. Wrong: the shift of the group's mask is off by one, so that its
// first lane is not in it.
// x, y: (gridDim.x, 32); block: 32
__global__ void wrong(const int* x, int* y) {
    __shared__ int values[32];
    const int t = threadIdx.x, i = blockIdx.x * 32 + t;
    const unsigned members = 0x7fu << (t / 8 * 8 + 1);
    values[t] = x[i];
    __syncwarp(members);  // BUG
    y[i] = values[t ^ 7];
}

__global__ void right(const int* x, int* y) {
    __shared__ int values[32];
    const int t = threadIdx.x, i = blockIdx.x * 32 + t;
    const unsigned members = 0xffu << (t / 8 * 8);
    values[t] = x[i];
    __syncwarp(members);
    y[i] = values[t ^ 7];
}
