// Sums of the values in the lower half of each warp, by shuffles among 16 lanes. Wrong: the mask names 24 lanes.
// x: (gridDim.x, 32), y: (gridDim.x,); block: 32
template <unsigned MASK>
__device__ __forceinline__ void half_sum(const int* x, int* y) {
    const int t = threadIdx.x;
    int value = x[blockIdx.x * 32 + t];
    if (t < 16) {
        for (int distance = 8; distance > 0; distance /= 2) value += __shfl_xor_sync(MASK, value, distance, 16);  // BUG
        if (t == 0) y[blockIdx.x] = value;
    }
    __syncwarp();
}

__global__ void wrong(const int* x, int* y) {
    half_sum<0x00ffffffu>(x, y);
}

__global__ void right(const int* x, int* y) {
    half_sum<0x0000ffffu>(x, y);
}
