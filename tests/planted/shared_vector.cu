// Rows of a padded tile in shared memory, read four values at a time. Wrong: one column of padding, which avoids bank
// conflicts, breaks the rows' 16-byte alignment.
// x: (32, 32), y: (32,) row sums; one block of 32
template <int PADDING>
__device__ __forceinline__ void row_sums(const float* x, float* y) {
    __shared__ alignas(16) float tile[32][32 + PADDING];
    const int t = threadIdx.x;
    for (int row = 0; row < 32; ++row) tile[row][t] = x[row * 32 + t];
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < 8; ++i) {
        const float4 v = reinterpret_cast<const float4*>(tile[t])[i];  // BUG
        sum += v.x + v.y + v.z + v.w;
    }
    y[t] = sum;
}

__global__ void wrong(const float* x, float* y) {
    row_sums<1>(x, y);
}

__global__ void right(const float* x, float* y) {
    row_sums<4>(x, y);
}
