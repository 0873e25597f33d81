// A block's scratch from malloc(). Wrong: freed by the first thread while other warps still use it.
// x, y: (gridDim.x, 64); block: 64
template <bool RIGHT>
__device__ __forceinline__ void body(const int* x, int* y) {
    __shared__ int* scratch;
    const int t = threadIdx.x;
    if (t == 0) scratch = static_cast<int*>(malloc(64 * sizeof(int)));
    __syncthreads();
    scratch[t] = x[blockIdx.x * 64 + t];
    __syncthreads();
    if (!RIGHT && t == 0) free(scratch);
    int sum = 0;
    for (int k = 0; k <= t; ++k) sum += scratch[k];  // BUG
    y[blockIdx.x * 64 + t] = sum;
    __syncthreads();
    if (RIGHT && t == 0) free(scratch);
}

__global__ void wrong(const int* x, int* y) {
    body<false>(x, y);
}

__global__ void right(const int* x, int* y) {
    body<true>(x, y);
}
