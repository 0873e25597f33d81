// Packs the positive values of each warp to the front. Wrong: the vote is inside the branch that it should precede.
// x, y: (gridDim.x, 32), y of zeros, count: (gridDim.x,); block: 32
__global__ void wrong(const int* x, int* y, int* count) {
    const int t = threadIdx.x, value = x[blockIdx.x * 32 + t];
    if (value > 0) {
        const unsigned kept = __ballot_sync(0xffffffffu, 1);  // BUG
        const int at = __popc(kept & ((1u << t) - 1));
        y[blockIdx.x * 32 + at] = value;
        if (at == 0) count[blockIdx.x] = __popc(kept);
    }
    __syncwarp();
}

__global__ void right(const int* x, int* y, int* count) {
    const int t = threadIdx.x, value = x[blockIdx.x * 32 + t];
    const unsigned kept = __ballot_sync(0xffffffffu, value > 0);
    if (value > 0) {
        const int at = __popc(kept & ((1u << t) - 1));
        y[blockIdx.x * 32 + at] = value;
        if (at == 0) count[blockIdx.x] = __popc(kept);
    }
    __syncwarp();
}
