// The sum of each row. Wrong: the sum starts without a value.
// x: (rows, cols), y: (rows,); block: 32
__global__ void wrong(const float* x, float* y, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum;
    for (int col = 0; col < cols; ++col) sum += x[row * cols + col];  // BUG
    y[row] = sum;
}

__global__ void right(const float* x, float* y, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0;
    for (int col = 0; col < cols; ++col) sum += x[row * cols + col];
    y[row] = sum;
}
