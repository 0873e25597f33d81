// Running sums from the end. Wrong: the index is unsigned, so the loop does not end at 0.
// x: (rows, n), changed in place
template <bool RIGHT>
__device__ __forceinline__ void body(int* x, int rows, int n) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int sum = 0;
    if (RIGHT) {
        for (int i = n - 1; i >= 0; --i) x[row * n + i] = sum += x[row * n + i];
    } else {
        for (unsigned i = n - 1; i >= 0; --i) x[size_t(row) * n + i] = sum += x[size_t(row) * n + i];  // BUG
    }
}

__global__ void wrong(int* x, int rows, int n) {
    body<false>(x, rows, n);
}

__global__ void right(int* x, int rows, int n) {
    body<true>(x, rows, n);
}
