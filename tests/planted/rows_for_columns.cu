// Adds a bias to each column. Wrong: the row stride is the number of rows.
// x, y: (rows, cols), bias: (cols,); block: (8, 8)
__global__ void wrong(const float* x, const float* bias, float* y, int rows, int cols) {
    const int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows && col < cols) y[row * rows + col] = x[row * rows + col] + bias[col];  // BUG
}

__global__ void right(const float* x, const float* bias, float* y, int rows, int cols) {
    const int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows && col < cols) y[row * cols + col] = x[row * cols + col] + bias[col];
}
