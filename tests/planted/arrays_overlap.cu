// Two arrays in dynamic shared memory. Wrong: the second starts within the first.
// x, y: (gridDim.x, blockDim.x); shared: 8 bytes per thread
template <bool RIGHT>
__device__ __forceinline__ void body(const int* x, int* y) {
    extern __shared__ int cells[];
    const int t = threadIdx.x, n = blockDim.x, i = blockIdx.x * n + t;
    int *first = cells, *second = cells + (RIGHT ? n : n / 2);
    first[t] = x[i];       // OTHER
    second[t] = 2 * x[i];  // BUG
    __syncthreads();
    y[i] = first[n - 1 - t] + second[n - 1 - t];
}

__global__ void wrong(const int* x, int* y) {
    body<false>(x, y);
}

__global__ void right(const int* x, int* y) {
    body<true>(x, y);
}
