// Row maxima of a matrix with padded rows. Wrong: the loop also reads the padding, which is uninitialised.
// x: (rows, pitch), of which the first cols columns are defined, y: (rows,); one thread per row
__global__ void wrong(const float* x, float* y, int rows, int cols, int pitch) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float largest = x[row * pitch];
    for (int c = 1; c < pitch; ++c) largest = fmaxf(largest, x[row * pitch + c]);  // BUG
    y[row] = largest;
}

__global__ void right(const float* x, float* y, int rows, int cols, int pitch) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float largest = x[row * pitch];
    for (int c = 1; c < cols; ++c) largest = fmaxf(largest, x[row * pitch + c]);
    y[row] = largest;
}
