// The logarithm of the product of each row of probabilities. Wrong: the product is too small for a float.
// p: (rows, columns), y: (rows,)
__global__ void wrong(const float* p, float* y, int rows, int columns) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float product = 1.0f;
    for (int k = 0; k < columns; ++k) {
        product *= p[row * columns + k];  // BUG
    }
    y[row] = product;
}

__global__ void right(const float* p, float* y, int rows, int columns) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int k = 0; k < columns; ++k) sum += logf(p[row * columns + k]);
    y[row] = sum;
}
