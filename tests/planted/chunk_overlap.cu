// Subtracts the first value of each chunk from the chunk, one block per chunk. Wrong: chunks are inclusive at both
// ends, so two blocks write different values to the cell that they share.
// x, y: (n,), chunk = n / gridDim.x; block: 32
__global__ void wrong(const float* x, float* y, int chunk) {
    const int first = blockIdx.x * chunk, last = min(first + chunk, (int)gridDim.x * chunk - 1);
    for (int i = first + threadIdx.x; i <= last; i += blockDim.x) y[i] = x[i] - x[first];  // BUG, OTHER
}

__global__ void right(const float* x, float* y, int chunk) {
    const int first = blockIdx.x * chunk, end = first + chunk;
    for (int i = first + threadIdx.x; i < end; i += blockDim.x) y[i] = x[i] - x[first];
}
