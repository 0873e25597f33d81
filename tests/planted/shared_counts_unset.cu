// Sums by key, accumulated in dynamic shared memory. Wrong: assumes that shared memory starts as zeros.
// keys, values: (n,), y: (entries,) of zeros; shared: 4 * entries bytes
__global__ void wrong(const int* keys, const int* values, int* y, int n, int entries) {
    extern __shared__ int sums[];
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&sums[keys[i]], values[i]);  // BUG
    __syncthreads();
    for (int i = threadIdx.x; i < entries; i += blockDim.x) atomicAdd(&y[i], sums[i]);
}

__global__ void right(const int* keys, const int* values, int* y, int n, int entries) {
    extern __shared__ int sums[];
    for (int i = threadIdx.x; i < entries; i += blockDim.x) sums[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&sums[keys[i]], values[i]);
    __syncthreads();
    for (int i = threadIdx.x; i < entries; i += blockDim.x) atomicAdd(&y[i], sums[i]);
}
