// Counts the positive values. Wrong: blocks add to the count with plain loads and stores, so updates are lost.
// x: (n,), count: (1,) of 0; block: 128
__global__ void wrong(const float* x, int* count, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int here = __syncthreads_count(i < n && x[i] > 0.0f);
    if (threadIdx.x == 0) *count += here;  // BUG, OTHER
}

__global__ void right(const float* x, int* count, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int here = __syncthreads_count(i < n && x[i] > 0.0f);
    if (threadIdx.x == 0) atomicAdd(count, here);
}
