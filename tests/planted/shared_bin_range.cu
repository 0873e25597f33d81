// Counts values in 16 bins of equal width. Wrong: the largest value gets bin 16, which does not exist.
// x: (n,) from 0 to 1, both included, bins: (16,) of zeros; one block
__global__ void wrong(const float* x, int* bins, int n) {
    __shared__ int counts[16];
    if (threadIdx.x < 16) counts[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&counts[(int)(16.0f * x[i])], 1);  // BUG
    __syncthreads();
    if (threadIdx.x < 16) bins[threadIdx.x] += counts[threadIdx.x];
}

__global__ void right(const float* x, int* bins, int n) {
    __shared__ int counts[16];
    if (threadIdx.x < 16) counts[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&counts[min((int)(16.0f * x[i]), 15)], 1);
    __syncthreads();
    if (threadIdx.x < 16) bins[threadIdx.x] += counts[threadIdx.x];
}
