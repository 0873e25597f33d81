// A histogram of bytes, counted per block in shared memory. Wrong: the count is not atomic, so updates are lost.
// x: (n,), bins: (256,) of zeros; any grid and block
__global__ void wrong(const unsigned char* x, int* bins, int n) {
    __shared__ int counts[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        counts[x[i]] += 1;  // BUG, OTHER
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], counts[i]);
}

__global__ void right(const unsigned char* x, int* bins, int n) {
    __shared__ int counts[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&counts[x[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], counts[i]);
}
