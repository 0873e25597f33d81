// Positive elements less the first of them in each warp. Wrong: the value is taken from lane 0, which may not be in the
// branch; the mask is that of the lanes which are.
// x: (gridDim.x, 32), changed in place; block: 32
template <bool RIGHT>
__device__ __forceinline__ void body(int* x) {
    const int i = blockIdx.x * 32 + threadIdx.x, v = x[i];
    if (v > 0) {
        const unsigned together = __activemask();
        const int first = __shfl_sync(together, v, RIGHT ? __ffs(together) - 1 : 0);  // BUG
        x[i] = v - first;
    }
}

__global__ void wrong(int* x) {
    body<false>(x);
}

__global__ void right(int* x) {
    body<true>(x);
}
