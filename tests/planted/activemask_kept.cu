// Sums per sign over a warp. Wrong: the mask that each branch took with __activemask() is used after the
// branches have ended.
// x, y: (gridDim.x, 32), block: 32
__global__ void wrong(const int* x, int* y) {
    const int i = blockIdx.x * 32 + threadIdx.x, value = x[i];
    unsigned mask;
    int own;
    if (value > 0) {
        mask = __activemask();
        own = value + y[i];
    } else {
        mask = 1u;
        own = y[i] - value;
    }
    __syncwarp();
    y[i] = __reduce_add_sync(mask, own);  // BUG
}

__global__ void right(const int* x, int* y) {
    const int i = blockIdx.x * 32 + threadIdx.x, value = x[i];
    const unsigned positive = __ballot_sync(0xffffffffu, value > 0);
    const int own = value > 0 ? value + y[i] : y[i] - value;
    const unsigned mask = value > 0 ? positive : ~positive;
    y[i] = __reduce_add_sync(mask, own);
}
