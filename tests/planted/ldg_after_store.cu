// Squares, then differences of neighbours, in one launch of one block. Wrong: the squares are loaded with __ldg().
// x, squares: (64,), y: (64,): squares[i] - squares[i - 1]; block: 64
__global__ void wrong(const float* x, float* squares, float* y) {
    const int t = threadIdx.x;
    squares[t] = x[t] * x[t];  // OTHER
    __syncthreads();
    y[t] = squares[t] - (t > 0 ? __ldg(&squares[t - 1]) : 0.0f);  // BUG
}

__global__ void right(const float* x, float* squares, float* y) {
    const int t = threadIdx.x;
    squares[t] = x[t] * x[t];
    __syncthreads();
    y[t] = squares[t] - (t > 0 ? squares[t - 1] : 0.0f);
}
