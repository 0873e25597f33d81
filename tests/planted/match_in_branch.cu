// Counts by key, one atomic for all lanes of a warp that hold the same key. Wrong: lanes past the end skip the match,
// and its mask names them.
// keys: (n,), counts: (entries,) of zeros; block: 64
__global__ void wrong(const int* keys, int* counts, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        const unsigned same = __match_any_sync(0xffffffffu, keys[i]);  // BUG
        if (__ffs(same) - 1 == threadIdx.x % 32) atomicAdd(&counts[keys[i]], __popc(same));
    }
    __syncwarp();
}

__global__ void right(const int* keys, int* counts, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned inside = __ballot_sync(0xffffffffu, i < n);
    if (i < n) {
        const unsigned same = __match_any_sync(inside, keys[i]);
        if (__ffs(same) - 1 == threadIdx.x % 32) atomicAdd(&counts[keys[i]], __popc(same));
    }
    __syncwarp();
}
