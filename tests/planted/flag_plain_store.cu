// Block 0 passes its tile to block 1 through a flag. Wrong: the flag is set by a plain store, which orders nothing.
// x, tile, y: (32,): y[t] = x[t] + 5, ready: (1,) of 0; two blocks of 32
__global__ void wrong(const int* x, int* tile, int* ready, int* y) {
    const int t = threadIdx.x;
    if (blockIdx.x == 0) {
        tile[t] = x[t] + 5;
        __threadfence();
        __syncwarp();
        if (t == 0) *ready = 1;  // BUG, OTHER
    } else {
        if (t == 0)
            while (*static_cast<volatile int*>(ready) == 0) {  // BUG, OTHER
            }
        __syncwarp();
        __threadfence();
        y[t] = tile[t];
    }
}

__global__ void right(const int* x, int* tile, int* ready, int* y) {
    const int t = threadIdx.x;
    if (blockIdx.x == 0) {
        tile[t] = x[t] + 5;
        __threadfence();
        __syncwarp();
        if (t == 0) *static_cast<volatile int*>(ready) = 1;
    } else {
        if (t == 0)
            while (*static_cast<volatile int*>(ready) == 0) {
            }
        __syncwarp();
        __threadfence();
        y[t] = tile[t];
    }
}
