// Subtracts the first value of each warp that is not negative. Wrong: the lane is searched among all lanes, but lanes
// with a negative value have returned. The twin votes after they have.
// x: (gridDim.x, 32), changed in place; block: 32
__global__ void wrong(int* x) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    const int value = x[i];
    if (value < 0) return;
    const int first = __shfl_sync(0xffffffffu, value, 0);  // BUG
    x[i] = value - first;
}

__global__ void right(int* x) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    const int value = x[i];
    if (value < 0) return;
    const unsigned members = __activemask();
    const int first = __shfl_sync(members, value, __ffs(members) - 1);
    x[i] = value - first;
}
