// Running sums of a whole array in one launch: a block adds its predecessors' sums, back to one whose prefix is
// published (decoupled look-back). Wrong: no fence between a sum and the flag that publishes it.
// x, y: (gridDim.x, 64), ticket: (1,) of 0, flags: (gridDim.x,) of 0, sums, prefixes: (gridDim.x,); block: 64
constexpr int kSum = 1, kPrefix = 2;

__device__ __forceinline__ int block_scan(int value, int* scratch) {
    const int t = threadIdx.x;
    scratch[t] = value;
    __syncthreads();
    for (int distance = 1; distance < 64; distance *= 2) {
        const int before = t >= distance ? scratch[t - distance] : 0;
        __syncthreads();
        scratch[t] += before;
        __syncthreads();
    }
    return scratch[t];
}

__global__ void wrong(const int* x, int* y, int* ticket, volatile int* flags, int* sums, int* prefixes) {
    __shared__ int scratch[64], mine, prefix;
    const int t = threadIdx.x;
    if (t == 0) mine = atomicAdd(ticket, 1);
    __syncthreads();
    const int block = mine;
    const int sum = block_scan(x[block * 64 + t], scratch);
    if (t == 63) {
        sums[block] = sum;  // OTHER
        flags[block] = kSum;
        int before = 0;
        for (int b = block - 1; b >= 0; --b) {
            int flag;
            do flag = flags[b];
            while (flag == 0);
            before += flag == kPrefix ? prefixes[b] : sums[b];  // BUG
            if (flag == kPrefix) break;
        }
        prefixes[block] = before + sum;  // OTHER
        flags[block] = kPrefix;
        prefix = before;
    }
    __syncthreads();
    y[block * 64 + t] = prefix + sum;
}

__global__ void right(const int* x, int* y, int* ticket, volatile int* flags, int* sums, int* prefixes) {
    __shared__ int scratch[64], mine, prefix;
    const int t = threadIdx.x;
    if (t == 0) mine = atomicAdd(ticket, 1);
    __syncthreads();
    const int block = mine;
    const int sum = block_scan(x[block * 64 + t], scratch);
    if (t == 63) {
        sums[block] = sum;
        __threadfence();
        flags[block] = kSum;
        int before = 0;
        for (int b = block - 1; b >= 0; --b) {
            int flag;
            do flag = flags[b];
            while (flag == 0);
            __threadfence();
            before += flag == kPrefix ? prefixes[b] : sums[b];
            if (flag == kPrefix) break;
        }
        prefixes[block] = before + sum;
        __threadfence();
        flags[block] = kPrefix;
        prefix = before;
    }
    __syncthreads();
    y[block * 64 + t] = prefix + sum;
}
