// Wrong: writes NaN to every element. A check written as `if (error > tolerance) fail` passes it.
__global__ void wrong(const float* x, float* y, long long x_row, long long x_col, long long y_row, long long y_col,
    long long rows, long long cols) {
    for (long long c = threadIdx.x; c < cols; c += blockDim.x)
        y[blockIdx.x * y_row + c * y_col] = __int_as_float(0x7fffffff);
}
