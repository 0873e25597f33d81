// Sums of the rows of a sparse matrix. Wrong: the end of the last row is read past the array of row starts.
// starts: (rows,), x: (n,), y: (rows,)
template <bool RIGHT>
__device__ __forceinline__ void body(const int* starts, const int* x, int* y, int rows, int n) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int end;
    if (RIGHT)
        end = row + 1 < rows ? starts[row + 1] : n;
    else
        end = starts[row + 1];  // BUG
    int sum = 0;
    for (int i = starts[row]; i < end; ++i) sum += x[i];
    y[row] = sum;
}

__global__ void wrong(const int* starts, const int* x, int* y, int rows, int n) {
    body<false>(starts, x, y, rows, n);
}

__global__ void right(const int* starts, const int* x, int* y, int rows, int n) {
    body<true>(starts, x, y, rows, n);
}
