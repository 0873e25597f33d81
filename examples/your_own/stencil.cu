// out: the mean of each element of x and its four neighbours, with zeros past the edges. x, out: [rows][cols].

// One thread per element. block: (x, y); grid: covers cols and rows.
__global__ void direct(const float* x, float* out, int rows, int cols) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r >= rows || c >= cols) return;
    const float* at = x + r * cols + c;
    float sum = *at;
    if (r > 0) sum += at[-cols];
    if (r + 1 < rows) sum += at[cols];
    if (c > 0) sum += at[-1];
    if (c + 1 < cols) sum += at[1];
    out[r * cols + c] = sum / 5;
}

// One thread per strip of HIGH elements of a column, with three of them in registers. block: x; grid: (covers cols,
// covers rows / HIGH). Bug on purpose: past the last row, `below` still has the previous row's value.
template <int HIGH>
__global__ void strips(const float* x, float* out, int rows, int cols) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x, top = blockIdx.y * HIGH;
    if (c >= cols) return;
    float above = top > 0 ? x[(top - 1) * cols + c] : 0.0f, here = x[top * cols + c], below = here;
    for (int r = top; r < min(top + HIGH, rows); ++r) {
        if (r + 1 < rows) below = x[(r + 1) * cols + c];
        const float left = c > 0 ? x[r * cols + c - 1] : 0.0f, right = c + 1 < cols ? x[r * cols + c + 1] : 0.0f;
        out[r * cols + c] = (here + above + below + left + right) / 5;
        above = here;
        here = below;
    }
}
