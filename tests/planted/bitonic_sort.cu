// A bitonic sort of each block's values in shared memory. Wrong: the barrier is outside the inner loop.
// x: (gridDim.x, blockDim.x), sorted in place; blockDim.x a power of two, shared: 4 * blockDim.x bytes
__device__ __forceinline__ void compare_swap(int* values, int t, int stride, int size) {
    const int other = t ^ stride;
    if (other > t) {
        const int low = values[t], high = values[other];  // BUG, OTHER
        if ((low > high) == ((t & size) == 0)) {
            values[t] = high;     // BUG, OTHER
            values[other] = low;  // BUG, OTHER
        }
    }
}

__global__ void wrong(int* x) {
    extern __shared__ int values[];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    values[t] = x[i];
    for (int size = 2; size <= blockDim.x; size *= 2) {
        __syncthreads();
        for (int stride = size / 2; stride > 0; stride /= 2) compare_swap(values, t, stride, size);
    }
    __syncthreads();
    x[i] = values[t];
}

__global__ void right(int* x) {
    extern __shared__ int values[];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    values[t] = x[i];
    for (int size = 2; size <= blockDim.x; size *= 2)
        for (int stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            compare_swap(values, t, stride, size);
        }
    __syncthreads();
    x[i] = values[t];
}
