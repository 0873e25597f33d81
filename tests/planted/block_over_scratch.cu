// Reversal within a block through an array for 64 threads. Wrong: the kernel uses it with any block.
// x, y: (gridDim.x, blockDim.x); block: 96
template <bool RIGHT>
__device__ __forceinline__ void body(const int* x, int* y) {
    __shared__ int scratch[RIGHT ? 96 : 64];
    const int t = threadIdx.x, n = blockDim.x;
    scratch[t] = x[blockIdx.x * n + t];  // BUG
    __syncthreads();
    y[blockIdx.x * n + t] = scratch[n - 1 - t];
}

__global__ void wrong(const int* x, int* y) {
    body<false>(x, y);
}

__global__ void right(const int* x, int* y) {
    body<true>(x, y);
}
