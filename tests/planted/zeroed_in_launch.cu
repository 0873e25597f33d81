// A histogram in global memory. Wrong: block 0 clears the bins in the same launch, while other blocks are counting.
// x: (n,) of values below 32, bins: (32,) of zeros; block: 64
__global__ void wrong(const int* x, int* bins, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < 32) bins[i] = 0;  // BUG, OTHER
    __syncthreads();
    if (i < n) atomicAdd(&bins[x[i]], 1);  // BUG, OTHER
}

__global__ void right(const int* x, int* bins, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    __syncthreads();
    if (i < n) atomicAdd(&bins[x[i]], 1);
}
