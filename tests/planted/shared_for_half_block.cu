// Reverses each block's values through dynamic shared memory. Wrong: the launch passes the bytes for half the block.
// x, y: (gridDim.x, blockDim.x), shared: 4 * blockDim.x bytes
__device__ __forceinline__ void reverse(const int* x, int* y) {
    extern __shared__ int tile[];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x;
    tile[t] = x[i + t];  // BUG
    __syncthreads();
    y[i + t] = tile[blockDim.x - 1 - t];
}

__global__ void wrong(const int* x, int* y) {
    reverse(x, y);
}

__global__ void right(const int* x, int* y) {
    reverse(x, y);
}
