// Exchanges the columns of a tile with one row per warp. Wrong: each warp reads back its own volatile row without a
// __syncwarp().
// x, y: (gridDim.x, 4, 32); block: (32, 4)
__global__ void wrong(const int* x, int* y) {
    __shared__ volatile int rows[4][32];
    const int t = threadIdx.x, row = threadIdx.y, i = (blockIdx.x * 4 + row) * 32;
    rows[row][t] = x[i + t];       // OTHER
    y[i + t] = rows[row][31 - t];  // BUG
}

__global__ void right(const int* x, int* y) {
    __shared__ volatile int rows[4][32];
    const int t = threadIdx.x, row = threadIdx.y, i = (blockIdx.x * 4 + row) * 32;
    rows[row][t] = x[i + t];
    __syncwarp();
    y[i + t] = rows[row][31 - t];
}
