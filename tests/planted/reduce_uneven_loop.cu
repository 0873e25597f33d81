// The largest value of each row, one warp per row, with one __reduce_max_sync per step. Wrong: in the last step only
// some lanes have a value; the others have left the loop.
// x: (gridDim.x, cols), y: (gridDim.x,); block: 32
__global__ void wrong(const int* x, int* y, int cols) {
    int best = -2147483647;
    for (int c = threadIdx.x; c < cols; c += 32)
        best = max(best, __reduce_max_sync(0xffffffffu, x[blockIdx.x * cols + c]));  // BUG
    __syncwarp();
    if (threadIdx.x == 0) y[blockIdx.x] = best;
}

__global__ void right(const int* x, int* y, int cols) {
    int best = -2147483647;
    for (int first = 0; first < cols; first += 32) {
        const int c = first + threadIdx.x;
        best = max(best, __reduce_max_sync(0xffffffffu, c < cols ? x[blockIdx.x * cols + c] : -2147483647));
    }
    __syncwarp();
    if (threadIdx.x == 0) y[blockIdx.x] = best;
}
