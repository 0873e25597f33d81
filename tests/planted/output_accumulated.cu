// A matrix-vector product in slices of columns, added to the output. Wrong: the output is fresh memory and was not
// zeroed.
// a: (rows, cols), x: (cols,), y: (rows,), contents undefined; one thread per row
__global__ void wrong(const float* a, const float* x, float* y, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    for (int first = 0; first < cols; first += 16) {
        float sum = 0.0f;
        for (int c = first; c < min(first + 16, cols); ++c) sum += a[row * cols + c] * x[c];
        y[row] += sum;  // BUG
    }
}

__global__ void right(const float* a, const float* x, float* y, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    y[row] = 0.0f;
    for (int first = 0; first < cols; first += 16) {
        float sum = 0.0f;
        for (int c = first; c < min(first + 16, cols); ++c) sum += a[row * cols + c] * x[c];
        y[row] += sum;
    }
}
