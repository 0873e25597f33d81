// Differences of a row and the value before it, one warp per row, several values per lane. Wrong: the value carried
// from the last round has no value in the first round. x, y: (gridDim.x, 96); block: 32
__global__ void wrong(const int* x, int* y) {
    const int t = threadIdx.x, start = blockIdx.x * 96;
    int carry;
    for (int i = t; i < 96; i += 32) {
        const int value = x[start + i];
        int before = __shfl_up_sync(0xffffffffu, value, 1);
        if (t == 0) before = carry;
        y[start + i] = value - before;  // BUG
        carry = __shfl_sync(0xffffffffu, value, 31);
    }
}

__global__ void right(const int* x, int* y) {
    const int t = threadIdx.x, start = blockIdx.x * 96;
    int carry = 0;
    for (int i = t; i < 96; i += 32) {
        const int value = x[start + i];
        int before = __shfl_up_sync(0xffffffffu, value, 1);
        if (t == 0) before = carry;
        y[start + i] = value - before;
        carry = __shfl_sync(0xffffffffu, value, 31);
    }
}
