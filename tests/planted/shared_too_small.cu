// A three-point sum through dynamic shared memory of one cell per thread. Wrong: the halo cells need two more.
// x, y: (gridDim.x * blockDim.x,), a ring; shared: 4 * blockDim.x bytes
__global__ void wrong(const int* x, int* y) {
    extern __shared__ int tile[];
    const int t = threadIdx.x, n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + t;
    tile[t] = x[i];
    if (t < 2) tile[blockDim.x + t] = x[(i + blockDim.x) % n];  // BUG
    __syncthreads();
    y[i] = tile[t] + tile[t + 1] + tile[t + 2];
}

__global__ void right(const int* x, int* y) {
    extern __shared__ int tile[];
    const int t = threadIdx.x, n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + t;
    tile[t] = x[i];
    __syncthreads();
    int sum = tile[t];
    for (int k = 1; k < 3; ++k) sum += t + k < blockDim.x ? tile[t + k] : x[(i + k) % n];
    y[i] = sum;
}
