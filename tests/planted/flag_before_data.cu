// Warp 0 passes its tile to warp 1 through a flag in shared memory. Wrong: the flag is set before the tile is stored.
// x, y: (32,): y[t] = x[31 - t]; one block of 64
__global__ void wrong(const float* x, float* y) {
    __shared__ float tile[32];
    __shared__ volatile int ready;
    const int lane = threadIdx.x % 32;
    if (threadIdx.x == 0) ready = 0;
    if (threadIdx.x < 32) tile[lane] = 0.0f;
    __syncthreads();
    if (threadIdx.x < 32) {
        __syncwarp();
        if (lane == 0) ready = 1;
        __threadfence_block();
        tile[lane] = x[lane];  // BUG
    } else {
        while (ready == 0) {
        }
        __threadfence_block();
        y[lane] = tile[31 - lane];  // BUG
    }
}

__global__ void right(const float* x, float* y) {
    __shared__ float tile[32];
    __shared__ volatile int ready;
    const int lane = threadIdx.x % 32;
    if (threadIdx.x == 0) ready = 0;
    if (threadIdx.x < 32) tile[lane] = 0.0f;
    __syncthreads();
    if (threadIdx.x < 32) {
        tile[lane] = x[lane];
        __threadfence_block();
        __syncwarp();
        if (lane == 0) ready = 1;
    } else {
        while (ready == 0) {
        }
        __threadfence_block();
        y[lane] = tile[31 - lane];
    }
}
