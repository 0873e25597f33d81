// Each thread counts its row's values by class in a local array. Wrong: only the first four classes are cleared.
// x: (rows, cols) of classes 0 to 7, y: (rows,): the commonest class; one thread per row
template <int CLEARED>
__device__ __forceinline__ void commonest(const int* x, int* y, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int counts[8];
#pragma unroll 1
    for (int i = 0; i < CLEARED; ++i) counts[i] = 0;
#pragma unroll 1
    for (int c = 0; c < cols; ++c) counts[x[row * cols + c]] += 1;  // BUG
    int best = 0;
#pragma unroll 1
    for (int i = 1; i < 8; ++i)
        if (counts[i] > counts[best]) best = i;
    y[row] = best;
}

__global__ void wrong(const int* x, int* y, int rows, int cols) {
    commonest<4>(x, y, rows, cols);
}

__global__ void right(const int* x, int* y, int rows, int cols) {
    commonest<8>(x, y, rows, cols);
}
