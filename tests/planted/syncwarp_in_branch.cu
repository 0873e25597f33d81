// The upper half of a warp passes values to the lower half through shared memory. Wrong: only the lower half calls
// __syncwarp, whose mask names all lanes; the upper half goes on to a vote.
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
