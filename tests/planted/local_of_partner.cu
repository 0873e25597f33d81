// Each thread sums what its neighbour has collected in a local array. Wrong: it reads the array by the neighbour's
// pointer, which names the thread's own local memory. Right: the neighbour reads its array by its own pointer.
// x: (gridDim.x, blockDim.x, 4), y: (gridDim.x, blockDim.x); n: 4
constexpr int kMost = 4;

__device__ __forceinline__ void collect(const int* x, int* mine, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; k < n; ++k) mine[k] = 2 * x[n * i + k];
}

__global__ void wrong(const int* x, int* y, int n) {
    __shared__ int* lists[64];
    int mine[kMost];
    collect(x, mine, n);
    lists[threadIdx.x] = mine;
    __syncthreads();
    const int* theirs = lists[threadIdx.x ^ 1];
    int sum = 0;
    for (int k = 0; k < n; ++k) sum += theirs[k];  // BUG
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

__global__ void right(const int* x, int* y, int n) {
    __shared__ int* lists[64];
    __shared__ int sums[64];
    int mine[kMost];
    collect(x, mine, n);
    lists[threadIdx.x] = mine;
    __syncthreads();
    const int* own = lists[threadIdx.x];
    int sum = 0;
    for (int k = 0; k < n; ++k) sum += own[k];
    sums[threadIdx.x] = sum;
    __syncthreads();
    y[blockIdx.x * blockDim.x + threadIdx.x] = sums[threadIdx.x ^ 1];
}
