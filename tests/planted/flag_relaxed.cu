// Block 0 passes its tile to block 1 through a flag. Wrong: the flag's store and load are relaxed and order nothing.
// Correct: a release and an acquire.
// x, tile, y: (32,): y[t] = x[31 - t] * 2, ready: (1,) of 0; two blocks of 32
__global__ void wrong(const int* x, int* tile, int* ready, int* y) {
    const int t = threadIdx.x;
    if (blockIdx.x == 0) {
        tile[t] = 2 * x[t];  // OTHER
        __syncthreads();
        if (t == 0) asm volatile("st.relaxed.gpu.global.s32 [%0], 1;" ::"l"(ready) : "memory");
    } else {
        int seen = 0;
        while (t == 0 && seen == 0)
            asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(ready) : "memory");
        __syncthreads();
        y[t] = tile[31 - t];  // BUG
    }
}

__global__ void right(const int* x, int* tile, int* ready, int* y) {
    const int t = threadIdx.x;
    if (blockIdx.x == 0) {
        tile[t] = 2 * x[t];
        __syncthreads();
        if (t == 0) asm volatile("st.release.gpu.global.s32 [%0], 1;" ::"l"(ready) : "memory");
    } else {
        int seen = 0;
        while (t == 0 && seen == 0)
            asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(ready) : "memory");
        __syncthreads();
        y[t] = tile[31 - t];
    }
}
