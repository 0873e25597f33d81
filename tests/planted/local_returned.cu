// The largest element of each row and its position, from a function. Wrong: the function returns the address of its own
// variable. Right: it fills one of the caller.
// x: (rows, cols), y: (rows, 2); one thread per row
struct Best {
    int value[2];
};

__device__ __forceinline__ void search(const int* row, int cols, Best& best) {
    best.value[0] = row[0];
    best.value[1] = 0;
    for (int c = 1; c < cols; ++c)
        if (row[c] > best.value[0]) {
            best.value[0] = row[c];
            best.value[1] = c;
        }
}

__device__ __noinline__ Best* found(const int* row, int cols) {
    Best best;
    search(row, cols, best);
    Best* volatile address = &best;
    return address;
}

__device__ __noinline__ void fill(const int* row, int cols, Best* best) {
    search(row, cols, *best);
}

__global__ void wrong(const int* x, int* y, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const Best* best = found(x + row * cols, cols);
    y[2 * row] = best->value[0];  // BUG
    y[2 * row + 1] = best->value[1];
}

__global__ void right(const int* x, int* y, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    Best best;
    fill(x + row * cols, cols, &best);
    y[2 * row] = best.value[0];
    y[2 * row + 1] = best.value[1];
}
