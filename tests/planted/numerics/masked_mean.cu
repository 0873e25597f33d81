// The mean of each row's elements that a mask selects. Wrong: a row without any is 0 / 0.
// x, mask: (rows, columns); y: (rows,)
__global__ void wrong(const float* x, const float* mask, float* y, int rows, int columns) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f, count = 0.0f;
    for (int k = 0; k < columns; ++k) {
        sum += mask[row * columns + k] * x[row * columns + k];
        count += mask[row * columns + k];
    }
    y[row] = sum / count;  // BUG
}

__global__ void right(const float* x, const float* mask, float* y, int rows, int columns) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f, count = 0.0f;
    for (int k = 0; k < columns; ++k) {
        sum += mask[row * columns + k] * x[row * columns + k];
        count += mask[row * columns + k];
    }
    y[row] = count > 0.0f ? sum / count : 0.0f;
}
