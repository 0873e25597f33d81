// out: x transposed. x: [rows][cols], out: [cols][rows].

// One thread per element. block: (x, y); grid: covers cols and rows.
__global__ void naive(const float* x, float* out, int rows, int cols) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r < rows && c < cols) out[c * rows + r] = x[r * cols + c];
}

// A tile in shared memory, so that loads and stores are both by rows. block: (TILE, ROWS), ROWS divides TILE.
template <int TILE, int ROWS, int PAD>
__global__ void tiled(const float* x, float* out, int rows, int cols) {
    __shared__ float tile[TILE][TILE + PAD];
    const int left = blockIdx.x * TILE, top = blockIdx.y * TILE;
    for (int i = threadIdx.y; i < TILE; i += ROWS)
        if (top + i < rows && left + threadIdx.x < cols)
            tile[i][threadIdx.x] = x[(top + i) * cols + left + threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.y; i < TILE; i += ROWS)
        if (left + i < cols && top + threadIdx.x < rows)
            out[(left + i) * rows + top + threadIdx.x] = tile[threadIdx.x][i];
}

// The same, with swizzled columns instead of padding. Bug on purpose: the stores use the bounds check of the loads.
template <int TILE, int ROWS>
__global__ void swizzled(const float* x, float* out, int rows, int cols) {
    __shared__ float tile[TILE][TILE];
    const int left = blockIdx.x * TILE, top = blockIdx.y * TILE;
    for (int i = threadIdx.y; i < TILE; i += ROWS)
        if (top + i < rows && left + threadIdx.x < cols)
            tile[i][threadIdx.x ^ i] = x[(top + i) * cols + left + threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.y; i < TILE; i += ROWS)
        if (top + i < rows && left + threadIdx.x < cols)
            out[(left + i) * rows + top + threadIdx.x] = tile[threadIdx.x][threadIdx.x ^ i];
}
