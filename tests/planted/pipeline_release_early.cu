// Warp 0 copies tiles into two stages, warp 1 adds them up reversed; a count per stage says how often it was emptied.
// Wrong: the consumer counts a stage as empty before it has read it.
// x: (tiles, 32), y: (32,): y[t] = sum over i of x[i][31 - t]; one block of 64
__device__ __forceinline__ void wait_for(int* count, int goal) {
    while (atomicAdd(count, 0) < goal) {
    }
    __threadfence_block();
    __syncwarp();
}

__device__ __forceinline__ void add_one(int* count) {
    __syncwarp();
    __threadfence_block();
    if (threadIdx.x % 32 == 0) atomicAdd(count, 1);
}

template <bool EARLY>
__device__ __forceinline__ void sum_tiles(const int* x, int* y, int tiles) {
    __shared__ int stage[2][32], full[2], empty[2];
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 2) full[threadIdx.x] = empty[threadIdx.x] = 0;
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < tiles; ++i) {
        const int s = i % 2;
        if (threadIdx.x < 32) {
            wait_for(&empty[s], i / 2);
            stage[s][lane] = x[i * 32 + lane];  // BUG, OTHER
            add_one(&full[s]);
        } else {
            wait_for(&full[s], i / 2 + 1);
            if (EARLY) add_one(&empty[s]);
            sum += stage[s][31 - lane];  // BUG, OTHER
            if (!EARLY) add_one(&empty[s]);
        }
    }
    if (threadIdx.x >= 32) y[lane] = sum;
}

__global__ void wrong(const int* x, int* y, int tiles) {
    sum_tiles<true>(x, y, tiles);
}

__global__ void right(const int* x, int* y, int tiles) {
    sum_tiles<false>(x, y, tiles);
}
