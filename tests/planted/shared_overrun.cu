// A box sum through a tile with a halo to the right and below. Wrong: the tile has no row for the halo, so the halo is
// past the end of the block's shared memory.
// x, y: (n, n), a torus; block: (16, 16), n a multiple of 16: y = x + right + below + below right
constexpr int kBlock = 16;

template <int ROWS>
__device__ __forceinline__ void box(const int* x, int* y, int n) {
    __shared__ int tile[ROWS][kBlock + 1];
    const int row = blockIdx.y * kBlock, col = blockIdx.x * kBlock;
    for (int i = threadIdx.y * kBlock + threadIdx.x; i < (kBlock + 1) * (kBlock + 1); i += kBlock * kBlock) {
        const int ty = i / (kBlock + 1), tx = i % (kBlock + 1);
        tile[ty][tx] = x[(row + ty) % n * n + (col + tx) % n];  // BUG
    }
    __syncthreads();
    const int ty = threadIdx.y, tx = threadIdx.x;
    y[(row + ty) * n + col + tx] = tile[ty][tx] + tile[ty][tx + 1] + tile[ty + 1][tx] + tile[ty + 1][tx + 1];
}

__global__ void wrong(const int* x, int* y, int n) {
    box<kBlock>(x, y, n);
}

__global__ void right(const int* x, int* y, int n) {
    box<kBlock + 1>(x, y, n);
}
