// Wrong: computes the result and never stores it. A check passes if the output still holds an earlier correct result.
__global__ void wrong(const float* x, float* y, long long x_row, long long x_col, long long y_row, long long y_col,
    long long rows, long long cols) {
    float sum = 0.0f;
    for (long long c = threadIdx.x; c < cols; c += blockDim.x) sum += x[blockIdx.x * x_row + c * x_col];
    if (sum == 1e38f) y[0] = sum;
}
