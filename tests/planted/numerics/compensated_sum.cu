// Row sums whose addends are much smaller than the first element. Wrong: they have no effect. The twin carries the
// digits that each addition loses (Kahan).
// x: (rows, columns), y: (rows,)
__global__ void wrong(const float* x, float* y, int rows, int columns) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int k = 0; k < columns; ++k) sum += x[row * columns + k];  // BUG
    y[row] = sum;
}

__global__ void right(const float* x, float* y, int rows, int columns) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f, lost = 0.0f;
    for (int k = 0; k < columns; ++k) {
        const float value = x[row * columns + k] - lost;
        const float next = sum + value;
        lost = (next - sum) - value;
        sum = next;
    }
    y[row] = sum;
}
