// Block 0 passes its tile to block 1 through a flag. Wrong: the fence has block scope instead of device scope.
// x, tile, y: (64,): y[t] = x[63 - t] - 1, ready: (1,) of 0; two blocks of 64
__global__ void wrong(const float* x, float* tile, int* ready, float* y) {
    const int t = threadIdx.x;
    if (blockIdx.x == 0) {
        tile[t] = x[t] - 1.0f;  // OTHER
        __syncthreads();
        if (t == 0) {
            __threadfence_block();
            atomicExch(ready, 1);
        }
    } else {
        if (t == 0)
            while (atomicAdd(ready, 0) == 0) {
            }
        __syncthreads();
        y[t] = tile[63 - t];  // BUG
    }
}

__global__ void right(const float* x, float* tile, int* ready, float* y) {
    const int t = threadIdx.x;
    if (blockIdx.x == 0) {
        tile[t] = x[t] - 1.0f;
        __syncthreads();
        if (t == 0) {
            __threadfence();
            atomicExch(ready, 1);
        }
    } else {
        if (t == 0) {
            while (atomicAdd(ready, 0) == 0) {
            }
            __threadfence();
        }
        __syncthreads();
        y[t] = tile[63 - t];
    }
}
