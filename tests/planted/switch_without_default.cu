// Applies an operation by its number. Wrong: the switch has no default, and some numbers are unknown.
// operations, x, y: (n,); unknown operations leave the value as it is; block: 64
__global__ void wrong(const int* operations, const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float factor;
    switch (operations[i]) {
        case 0:
            factor = __ldg(x);
            break;
        case 1:
            factor = 2 * x[i];
            break;
        case 2:
            factor = x[i] - 1;
            break;
    }
    y[i] = factor * x[i];  // BUG
}

__global__ void right(const int* operations, const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float factor = 1;
    switch (operations[i]) {
        case 0:
            factor = __ldg(x);
            break;
        case 1:
            factor = 2 * x[i];
            break;
        case 2:
            factor = x[i] - 1;
            break;
    }
    y[i] = factor * x[i];
}
