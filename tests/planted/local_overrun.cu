// The k largest of each row, kept in order in a small local array. Wrong: the insertion shifts an element past its end.
// x: (rows, cols), y: (rows, k), k at most 4; one thread per row
constexpr int kMost = 4;

__global__ void wrong(const int* x, int* y, int rows, int cols, int k) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int best[kMost];
    for (int i = 0; i < k; ++i) best[i] = -1;
    for (int c = 0; c < cols; ++c) {
        const int value = x[row * cols + c];
        int at = k;
        while (at > 0 && best[at - 1] < value) {
            best[at] = best[at - 1];  // BUG
            --at;
        }
        if (at < k) best[at] = value;
    }
    for (int i = 0; i < k; ++i) y[row * k + i] = best[i];
}

__global__ void right(const int* x, int* y, int rows, int cols, int k) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int best[kMost];
    for (int i = 0; i < k; ++i) best[i] = -1;
    for (int c = 0; c < cols; ++c) {
        const int value = x[row * cols + c];
        int at = k;
        while (at > 0 && best[at - 1] < value) {
            if (at < k) best[at] = best[at - 1];
            --at;
        }
        if (at < k) best[at] = value;
    }
    for (int i = 0; i < k; ++i) y[row * k + i] = best[i];
}
