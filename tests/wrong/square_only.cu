// Wrong: uses n as every leading dimension, which is correct only for square contiguous arrays.
using int64 = long long;

__global__ void wrong(const float* a, const float* b, const float* c, float* d, int64 a_row, int64 a_col, int64 a_batch,
    int64 b_row, int64 b_col, int64 b_batch, int64 c_row, int64 c_col, int64 c_batch, int64 d_row, int64 d_col,
    int64 d_batch, int64 m, int64 n, int64 k, int64 batches, float alpha, float beta) {
    const int64 row = blockIdx.x / 2 * 16 + threadIdx.y, col = blockIdx.x % 2 * 16 + threadIdx.x;
    float sum = 0.0f;
    for (int64 i = 0; i < n; ++i) sum += a[row * n + i] * b[i * n + col];
    d[row * n + col] = sum;
}
