// The entropy of each row of probabilities. Wrong: the logarithm of a probability of 0.
// p: (rows, columns), y: (rows,)
__global__ void wrong(const float* p, float* y, int rows, int columns) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int k = 0; k < columns; ++k) {
        const float chance = p[row * columns + k];
        const float bits = logf(chance);  // BUG
        sum -= chance * bits;
    }
    y[row] = sum;
}

__global__ void right(const float* p, float* y, int rows, int columns) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int k = 0; k < columns; ++k) {
        const float chance = p[row * columns + k];
        if (chance > 0.0f) sum -= chance * logf(chance);
    }
    y[row] = sum;
}
