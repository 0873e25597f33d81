// Counts on from `start` the elements above a limit. Wrong: a float counter stops at 2^24.
// x: (rows, columns); y: (rows,)
__global__ void wrong(const float* x, float* y, float limit, int rows, int columns, int start) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float count = start;
    for (int k = 0; k < columns; ++k) {
        if (x[row * columns + k] > limit) count += 1.0f;  // BUG
    }
    y[row] = count;
}

__global__ void right(const float* x, float* y, float limit, int rows, int columns, int start) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int count = start;
    for (int k = 0; k < columns; ++k) {
        if (x[row * columns + k] > limit) count += 1;
    }
    y[row] = count;
}
