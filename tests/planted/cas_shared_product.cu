// The product of a block's values, by atomicCAS in shared memory after a plain first read. Wrong: no barrier between
// the products and the plain read of the result.
// x: (gridDim.x, 64), y: (gridDim.x,); block: 64
__device__ void multiply(int* bits, float value) {
    int old = *bits, assumed;
    do {
        assumed = old;
        old = atomicCAS(bits, assumed, __float_as_int(__int_as_float(assumed) * value));  // BUG, OTHER
    } while (assumed != old);
}

__global__ void wrong(const float* x, float* y) {
    __shared__ int product;
    if (threadIdx.x == 0) product = __float_as_int(1.0f);
    __syncthreads();
    multiply(&product, x[blockIdx.x * 64 + threadIdx.x]);
    if (threadIdx.x == 0) y[blockIdx.x] = __int_as_float(product);  // BUG, OTHER
}

__global__ void right(const float* x, float* y) {
    __shared__ int product;
    if (threadIdx.x == 0) product = __float_as_int(1.0f);
    __syncthreads();
    multiply(&product, x[blockIdx.x * 64 + threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) y[blockIdx.x] = __int_as_float(product);
}
