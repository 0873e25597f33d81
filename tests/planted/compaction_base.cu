// Keeps the positive values in any order: the offsets in the block are from votes, the block's base from one atomic.
// Wrong: the base is read without a barrier after the atomic.
// x, kept: (n,), count: (1,) of 0; block: 64
template <bool WAITS>
__device__ __forceinline__ void compact(const int* x, int* kept, int* count, int n) {
    __shared__ int of_warp[2], base;
    const int t = threadIdx.x, i = blockIdx.x * 64 + t, lane = t % 32, warp = t / 32;
    if (t == 0) base = 0;
    const bool keep = i < n && x[i] > 0;
    const unsigned kept_here = __ballot_sync(0xffffffffu, keep);
    if (lane == 0) of_warp[warp] = __popc(kept_here);
    __syncthreads();
    if (t == 0) base = atomicAdd(count, of_warp[0] + of_warp[1]);  // BUG, OTHER
    if (WAITS) __syncthreads();
    const int before = (warp == 1 ? of_warp[0] : 0) + __popc(kept_here & ((1u << lane) - 1));
    if (keep) kept[base + before] = x[i];  // BUG, OTHER
}

__global__ void wrong(const int* x, int* kept, int* count, int n) {
    compact<false>(x, kept, count, n);
}

__global__ void right(const int* x, int* kept, int* count, int n) {
    compact<true>(x, kept, count, n);
}
