// A histogram counted in global memory. Wrong: the counts are not atomic.
// x: (n,) of values below 64, bins: (64,) of zeros; any grid and block
__global__ void wrong(const int* x, int* bins, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) bins[x[i]]++;  // BUG, OTHER
}

__global__ void right(const int* x, int* bins, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[x[i]], 1);
}
