// A bit per positive value, 32 to a word in shared memory. Wrong: threads set their bits by |=, which is a load and a
// store of the whole word.
// x: (gridDim.x, 64), y: (gridDim.x, 2): bit j of word w is set if x[32 * w + j] > 0; block: 64
template <bool ATOMIC>
__device__ __forceinline__ void pack(const int* x, unsigned* y) {
    __shared__ unsigned words[2];
    const int t = threadIdx.x;
    if (t < 2) words[t] = 0;
    __syncthreads();
    const unsigned bit = x[blockIdx.x * 64 + t] > 0 ? 1u << t % 32 : 0u;
    if (ATOMIC)
        atomicOr(&words[t / 32], bit);
    else
        words[t / 32] |= bit;  // BUG, OTHER
    __syncthreads();
    if (t < 2) y[blockIdx.x * 2 + t] = words[t];
}

__global__ void wrong(const int* x, unsigned* y) {
    pack<false>(x, y);
}

__global__ void right(const int* x, unsigned* y) {
    pack<true>(x, y);
}
