// A histogram of bytes in shared memory. Wrong: no barrier between clearing the counts and counting.
// x: (n,), bins: (256,) of zeros; block: 128
__global__ void wrong(const unsigned char* x, int* bins, int n) {
    __shared__ int counts[256];
    for (int i = threadIdx.x; i < 256; i += 128) counts[i] = 0;                                             // OTHER
    for (int i = blockIdx.x * 128 + threadIdx.x; i < n; i += gridDim.x * 128) atomicAdd(&counts[x[i]], 1);  // BUG
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += 128) atomicAdd(&bins[i], counts[i]);
}

__global__ void right(const unsigned char* x, int* bins, int n) {
    __shared__ int counts[256];
    for (int i = threadIdx.x; i < 256; i += 128) counts[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * 128 + threadIdx.x; i < n; i += gridDim.x * 128) atomicAdd(&counts[x[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += 128) atomicAdd(&bins[i], counts[i]);
}
