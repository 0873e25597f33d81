// Exclusive running sums in shared memory, with the total in one more element. Wrong: the total is not stored.
// x: (gridDim.x, 64), y: (gridDim.x, 64): each part's fraction of the total; block: 64
template <bool RIGHT>
__device__ __forceinline__ void body(const float* x, float* y) {
    __shared__ float prefix[65];
    const int t = threadIdx.x;
    if (t == 0) {
        float sum = 0;
        for (int k = 0; k < 64; ++k) {
            prefix[k] = sum;
            sum += x[blockIdx.x * 64 + k];
        }
        if (RIGHT) prefix[64] = sum;
    }
    __syncthreads();
    y[blockIdx.x * 64 + t] = prefix[t] - prefix[64];  // BUG
}

__global__ void wrong(const float* x, float* y) {
    body<false>(x, y);
}

__global__ void right(const float* x, float* y) {
    body<true>(x, y);
}
