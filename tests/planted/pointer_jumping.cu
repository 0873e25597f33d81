// Finds the root of each node by pointer jumping within one block. Wrong: parents are replaced in place while other
// threads still read them.
// parent: (64,), root: (64,); one block of 64
template <bool IN_PLACE>
__device__ __forceinline__ void jump(const int* parent, int* root) {
    __shared__ int up[64];
    const int t = threadIdx.x;
    up[t] = parent[t];
    __syncthreads();
    for (int step = 0; step < 6; ++step) {
        const int next = up[up[t]];  // BUG, OTHER
        if (!IN_PLACE) __syncthreads();
        up[t] = next;  // BUG, OTHER
        __syncthreads();
    }
    root[t] = up[t];
}

__global__ void wrong(const int* parent, int* root) {
    jump<true>(parent, root);
}

__global__ void right(const int* parent, int* root) {
    jump<false>(parent, root);
}
