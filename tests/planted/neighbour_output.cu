// Squares, and the difference of each square from the next. Wrong: the next square is read from the output, and at the
// end of a block another block writes it.
// x, squares, differences: (n,); differences[n - 1] is squares[n - 1]; block: 64
__global__ void wrong(const float* x, float* squares, float* differences, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) squares[i] = x[i] * x[i];  // OTHER
    __syncthreads();
    if (i < n) differences[i] = squares[i] - (i + 1 < n ? squares[i + 1] : 0.0f);  // BUG
}

__global__ void right(const float* x, float* squares, float* differences, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) squares[i] = x[i] * x[i];
    __syncthreads();
    if (i < n) differences[i] = squares[i] - (i + 1 < n ? x[i + 1] * x[i + 1] : 0.0f);
}
