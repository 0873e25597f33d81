// A 3x3 box filter through a tile with a halo of one cell. Wrong: the halo's rows and columns are loaded, but not its
// corners.
// x, y: (n, n), a torus; block: (16, 16), n a multiple of 16
constexpr int kBlock = 16;

template <bool CORNERS>
__device__ __forceinline__ void box(const int* x, int* y, int n) {
    __shared__ int tile[kBlock + 2][kBlock + 2];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * kBlock + ty, col = blockIdx.x * kBlock + tx;
    const int dy = ty == 0 ? -1 : ty == kBlock - 1 ? 1 : 0, dx = tx == 0 ? -1 : tx == kBlock - 1 ? 1 : 0;
    const int far_row = (row + dy + n) % n, far_col = (col + dx + n) % n;
    tile[ty + 1][tx + 1] = x[row * n + col];
    if (dy != 0) tile[ty + 1 + dy][tx + 1] = x[far_row * n + col];
    if (dx != 0) tile[ty + 1][tx + 1 + dx] = x[row * n + far_col];
    if (CORNERS && dy != 0 && dx != 0) tile[ty + 1 + dy][tx + 1 + dx] = x[far_row * n + far_col];
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j) sum += tile[ty + i][tx + j];  // BUG
    y[row * n + col] = sum;
}

__global__ void wrong(const int* x, int* y, int n) {
    box<false>(x, y, n);
}

__global__ void right(const int* x, int* y, int n) {
    box<true>(x, y, n);
}
