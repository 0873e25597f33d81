// The upper half of a warp hands values to the lower half, then all of it votes. Wrong: the lower half alone waits,
// with a mask that names all lanes.
// x: (32,), y: (16,): y[t] = x[31 - t]; one block of 32
__global__ void wrong(const int* x, int* y) {
    __shared__ int values[16];
    const int t = threadIdx.x;
    if (t >= 16) values[31 - t] = x[t];
    if (t < 16) {
        __syncwarp();  // BUG
        y[t] = values[t];
    }
    if (__any_sync(0xffffffffu, x[t] == 12345) && t < 16) y[t] = 0;
}

__global__ void right(const int* x, int* y) {
    __shared__ int values[16];
    const int t = threadIdx.x;
    if (t >= 16) values[31 - t] = x[t];
    __syncwarp();
    if (t < 16) {
        y[t] = values[t];
    }
    if (__any_sync(0xffffffffu, x[t] == 12345) && t < 16) y[t] = 0;
}
