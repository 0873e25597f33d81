// The last position of a key in a row. Wrong: the position has no value if the key is not there.
// x: (rows, cols), keys: (rows,), y: (rows,), -1 if it is not there; block: 32
__global__ void wrong(const int* x, const int* keys, int* y, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int found;
    for (int col = 0; col < cols; ++col)
        if (x[row * cols + col] == keys[row]) found = col;
    y[row] = found;  // BUG
}

__global__ void right(const int* x, const int* keys, int* y, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int found = -1;
    for (int col = 0; col < cols; ++col)
        if (x[row * cols + col] == keys[row]) found = col;
    y[row] = found;
}
