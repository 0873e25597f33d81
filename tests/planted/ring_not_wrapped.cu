// A ring of 32 values in shared memory. Wrong: the read position is not wrapped.
// x, y: (gridDim.x, 32), block: 32
template <bool RIGHT>
__device__ __forceinline__ void body(const int* x, int* y, int distance) {
    __shared__ int ring[32];
    const int t = threadIdx.x;
    ring[t] = x[blockIdx.x * 32 + t];
    __syncthreads();
    int at = t + distance;
    if (RIGHT) at %= 32;
    y[blockIdx.x * 32 + t] = ring[at];  // BUG
}

__global__ void wrong(const int* x, int* y, int distance) {
    body<false>(x, y, distance);
}

__global__ void right(const int* x, int* y, int distance) {
    body<true>(x, y, distance);
}
