// Counts the set bits. Wrong: blocks add to an uninitialised counter.
// x: (n,), count: (2,) of undefined contents; in the correct kernel a single block stores it
__global__ void wrong(const unsigned* x, int* count, int n) {
    int bits = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) bits += __popc(x[i]);
    bits = __reduce_add_sync(0xffffffffu, bits);
    if (threadIdx.x % 32 == 0) atomicAdd(count, bits);  // BUG
}

__global__ void right(const unsigned* x, int* count, int n) {
    int bits = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) bits += __popc(x[i]);
    bits = __reduce_add_sync(0xffffffffu, bits);
    if (threadIdx.x == 0) *count = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) atomicAdd(count, bits);
}
