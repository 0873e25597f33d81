// Adds to each positive value its right neighbour's. Wrong: the shuffle's mask names all lanes, in a branch that only
// some of them take.
// x, y: (gridDim.x, 32); block: 32
__global__ void wrong(const int* x, int* y) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    int value = x[i];
    if (value > 0) value += __shfl_down_sync(0xffffffffu, value, 1);  // BUG
    __syncwarp();
    y[i] = value;
}

__global__ void right(const int* x, int* y) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    int value = x[i];
    const int next = __shfl_down_sync(0xffffffffu, value, 1);
    if (value > 0) value += next;
    __syncwarp();
    y[i] = value;
}
