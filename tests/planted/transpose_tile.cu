// A transpose through tiles in shared memory. Wrong: no barrier between filling a tile and reading it transposed.
// x: (rows, cols), y: (cols, rows); block: (16, 16), grid: tiles across and down; any size
constexpr int kTile = 16;

__global__ void wrong(const float* x, float* y, int rows, int cols) {
    __shared__ float tile[kTile][kTile + 1];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * kTile + ty, col = blockIdx.x * kTile + tx;
    if (row < rows && col < cols) tile[ty][tx] = x[row * cols + col];  // OTHER
    const int to_row = blockIdx.x * kTile + ty, to_col = blockIdx.y * kTile + tx;
    if (to_row < cols && to_col < rows) y[to_row * rows + to_col] = tile[tx][ty];  // BUG
}

__global__ void right(const float* x, float* y, int rows, int cols) {
    __shared__ float tile[kTile][kTile + 1];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * kTile + ty, col = blockIdx.x * kTile + tx;
    if (row < rows && col < cols) tile[ty][tx] = x[row * cols + col];
    __syncthreads();
    const int to_row = blockIdx.x * kTile + ty, to_col = blockIdx.y * kTile + tx;
    if (to_row < cols && to_col < rows) y[to_row * rows + to_col] = tile[tx][ty];
}
