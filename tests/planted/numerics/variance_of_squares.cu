// The variance of each row. Wrong: E[x^2] - E[x]^2, which cancels if the mean is large.
// x: (rows, columns), y: (rows,)
__global__ void wrong(const float* x, float* y, int rows, int columns) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f, squares = 0.0f;
    for (int k = 0; k < columns; ++k) {
        const float value = x[row * columns + k];
        sum += value;
        squares += value * value;
    }
    const float mean = sum / columns;
    y[row] = squares / columns - mean * mean;  // BUG
}

__global__ void right(const float* x, float* y, int rows, int columns) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f, squares = 0.0f;
    for (int k = 0; k < columns; ++k) sum += x[row * columns + k];
    const float mean = sum / columns;
    for (int k = 0; k < columns; ++k) {
        const float value = x[row * columns + k] - mean;
        squares += value * value;
    }
    y[row] = squares / columns;
}
