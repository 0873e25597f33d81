// Copies a column of a large matrix, of which x is a window that starts at element `first`. Wrong: the element's number
// in the matrix needs 64 bits.
// x: the window; y: (rows,)
__global__ void wrong(const float* x, float* y, int row0, int rows, int pitch, long long first) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows) return;
    const int element = (row0 + i) * pitch;  // BUG
    y[i] = x[element - first];
}

__global__ void right(const float* x, float* y, int row0, int rows, int pitch, long long first) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows) return;
    const long long element = (long long)(row0 + i) * pitch;
    y[i] = x[element - first];
}
