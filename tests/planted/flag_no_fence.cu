// Block 0 passes its tile to block 1 through a flag. Wrong: no fence between the tile and the flag.
// x, tile, y: (32,): y[t] = 3 * x[31 - t], ready: (1,) of 0; two blocks of 32
__global__ void wrong(const float* x, float* tile, int* ready, float* y) {
    const int t = threadIdx.x;
    if (blockIdx.x == 0) {
        tile[t] = 3.0f * x[t];  // OTHER
        __syncwarp();
        if (t == 0) atomicExch(ready, 1);
    } else {
        if (t == 0)
            while (*static_cast<volatile int*>(ready) == 0) {
            }
        __syncwarp();
        y[t] = tile[31 - t];  // BUG
    }
}

__global__ void right(const float* x, float* tile, int* ready, float* y) {
    const int t = threadIdx.x;
    if (blockIdx.x == 0) {
        tile[t] = 3.0f * x[t];
        __threadfence();
        __syncwarp();
        if (t == 0) atomicExch(ready, 1);
    } else {
        if (t == 0)
            while (*static_cast<volatile int*>(ready) == 0) {
            }
        __syncwarp();
        __threadfence();
        y[t] = tile[31 - t];
    }
}
