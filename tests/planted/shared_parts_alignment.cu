// Two arrays in one dynamic shared memory: an odd number of floats, then doubles. Wrong: the doubles start at the end
// of the floats, without padding to 8 bytes.
// x: (cols,), y: (cols,): y[t] = x[t] / 3 as double; one block of 64, cols odd, shared: 12 * cols + 4 bytes
template <bool PAD>
__device__ __forceinline__ void thirds(const float* x, double* y, int cols) {
    extern __shared__ __align__(16) char memory[];
    float* values = reinterpret_cast<float*>(memory);
    double* results = reinterpret_cast<double*>(memory + (PAD ? (4 * cols + 7) / 8 * 8 : 4 * cols));
    const int t = threadIdx.x;
    if (t < cols) values[t] = x[t];
    __syncthreads();
    if (t < cols) results[t] = values[cols - 1 - t] / 3.0;  // BUG
    __syncthreads();
    if (t < cols) y[t] = results[cols - 1 - t];
}

__global__ void wrong(const float* x, double* y, int cols) {
    thirds<false>(x, y, cols);
}

__global__ void right(const float* x, double* y, int cols) {
    thirds<true>(x, y, cols);
}
