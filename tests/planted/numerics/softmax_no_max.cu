// Softmax of rows, one block of 64 threads per row. Wrong: the maximum is not subtracted, and exp overflows.
// x, y: (rows, 64)
__device__ float total(float value, float* shared) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    return shared[0] + shared[1];
}

__device__ float most(float value, float* shared) {
    for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, step));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    return fmaxf(shared[0], shared[1]);
}

__global__ void wrong(const float* x, float* y) {
    __shared__ float shared[2];
    const int i = blockIdx.x * 64 + threadIdx.x;
    const float power = expf(x[i]);  // BUG
    y[i] = power / total(power, shared);
}

__global__ void right(const float* x, float* y) {
    __shared__ float shared[2], maxima[2];
    const int i = blockIdx.x * 64 + threadIdx.x;
    const float power = expf(x[i] - most(x[i], maxima));
    y[i] = power / total(power, shared);
}
