// The sum of an array in one launch: the last block to finish adds up the blocks' sums. Wrong: there is no fence
// between a block's sum and its count, so the last block may read stale sums.
// x: (n,), sums: (gridDim.x,), done: (1,) of 0, total: (1,); block: 64
__device__ __forceinline__ int block_sum(int value, int* scratch) {
    const int t = threadIdx.x;
    scratch[t] = value;
    for (int half = 32; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) scratch[t] += scratch[t + half];
    }
    __syncthreads();
    return scratch[0];
}

__global__ void wrong(const int* x, int* sums, unsigned* done, int* total, int n) {
    __shared__ int scratch[64];
    __shared__ bool last;
    const int t = threadIdx.x, i = blockIdx.x * 64 + t;
    const int sum = block_sum(i < n ? x[i] : 0, scratch);
    if (t == 0) {
        sums[blockIdx.x] = sum;  // OTHER
        last = atomicAdd(done, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    int value = 0;
    for (int j = t; j < gridDim.x; j += 64) value += sums[j];  // BUG
    value = block_sum(value, scratch);
    if (t == 0) *total = value;
}

__global__ void right(const int* x, int* sums, unsigned* done, int* total, int n) {
    __shared__ int scratch[64];
    __shared__ bool last;
    const int t = threadIdx.x, i = blockIdx.x * 64 + t;
    const int sum = block_sum(i < n ? x[i] : 0, scratch);
    if (t == 0) {
        sums[blockIdx.x] = sum;
        __threadfence();
        last = atomicAdd(done, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    int value = 0;
    for (int j = t; j < gridDim.x; j += 64) value += sums[j];
    value = block_sum(value, scratch);
    if (t == 0) *total = value;
}
