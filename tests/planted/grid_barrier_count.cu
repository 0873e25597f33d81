// Two phases with a hand-written grid barrier between them. Wrong: it waits for one block too many.
// x, y: (gridDim.x,): y[b] = x[gridDim.x - 1 - b] + 1, middle: (gridDim.x,), came: (1,) of 0; blocks of 1, cooperative
__device__ __forceinline__ void grid_barrier(unsigned* came, unsigned goal) {
    __threadfence();
    atomicAdd(came, 1);
    while (*static_cast<volatile unsigned*>(came) < goal) {  // BUG
    }
    __threadfence();
}

__global__ void wrong(const int* x, int* middle, unsigned* came, int* y) {
    middle[blockIdx.x] = x[blockIdx.x] + 1;
    grid_barrier(came, gridDim.x + 1);
    y[blockIdx.x] = middle[gridDim.x - 1 - blockIdx.x];
}

__global__ void right(const int* x, int* middle, unsigned* came, int* y) {
    middle[blockIdx.x] = x[blockIdx.x] + 1;
    grid_barrier(came, gridDim.x);
    y[blockIdx.x] = middle[gridDim.x - 1 - blockIdx.x];
}
