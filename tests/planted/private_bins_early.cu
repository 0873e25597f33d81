// A histogram per block, added to the global one. Wrong: no barrier between counting and adding.
// x: (n,) of 0 to 63, bins: (64,) of 0; block: 96
template <bool RIGHT>
__device__ __forceinline__ void body(const int* x, int* bins, int n) {
    __shared__ int mine[64];
    const int t = threadIdx.x;
    if (t < 64) mine[t] = 0;
    __syncthreads();
    for (int i = blockIdx.x * 96 + t; i < n; i += gridDim.x * 96) atomicAdd(&mine[x[i]], 1);  // BUG, OTHER
    if (RIGHT) __syncthreads();
    if (t < 64) atomicAdd(&bins[t], mine[t]);  // BUG, OTHER
}

__global__ void wrong(const int* x, int* bins, int n) {
    body<false>(x, bins, n);
}

__global__ void right(const int* x, int* bins, int n) {
    body<true>(x, bins, n);
}
