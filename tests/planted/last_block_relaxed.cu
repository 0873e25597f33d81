// The largest value in one launch: the last block to finish compares the blocks' largest. Wrong: its count is a relaxed
// atomic. Correct: an acquire-release atomic, instead of fences.
// x: (gridDim.x, 32), largest: (gridDim.x,), done: (1,) of 0, y: (1,); block: 32
__device__ __forceinline__ unsigned count_relaxed(unsigned* done) {
    unsigned before;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(done) : "memory");
    return before;
}

__device__ __forceinline__ unsigned count_ordered(unsigned* done) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(done) : "memory");
    return before;
}

template <bool ORDERED>
__device__ __forceinline__ void maximum(const int* x, int* largest, unsigned* done, int* y) {
    const int t = threadIdx.x;
    const int mine = __reduce_max_sync(0xffffffffu, x[blockIdx.x * 32 + t]);
    unsigned before = 0;
    if (t == 0) {
        largest[blockIdx.x] = mine;  // OTHER
        before = ORDERED ? count_ordered(done) : count_relaxed(done);
    }
    before = __shfl_sync(0xffffffffu, before, 0);
    if (before != gridDim.x - 1) return;
    __syncwarp();
    int best = mine;
    for (int b = t; b < gridDim.x; b += 32) best = max(best, largest[b]);  // BUG
    best = __reduce_max_sync(0xffffffffu, best);
    if (t == 0) *y = best;
}

__global__ void wrong(const int* x, int* largest, unsigned* done, int* y) {
    maximum<false>(x, largest, done, y);
}

__global__ void right(const int* x, int* largest, unsigned* done, int* y) {
    maximum<true>(x, largest, done, y);
}
