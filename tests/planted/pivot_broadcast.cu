// Elimination below the diagonal, one thread per row; thread k publishes its pivot row. Wrong: the next pivot row is
// published while slower threads still use the previous one.
// a: (64, 64) row by row, changed in place; one block of 64
constexpr int kSize = 64;

__global__ void wrong(float* a) {
    __shared__ float pivot[kSize];
    const int row = threadIdx.x;
    for (int k = 0; k < kSize; ++k) {
        if (row == k)
            for (int j = k; j < kSize; ++j) pivot[j] = a[row * kSize + j];  // BUG
        __syncthreads();
        if (row > k) {
            const float factor = a[row * kSize + k] / pivot[k];
            for (int j = k; j < kSize; ++j) a[row * kSize + j] -= factor * pivot[j];  // OTHER
        }
    }
}

__global__ void right(float* a) {
    __shared__ float pivot[kSize];
    const int row = threadIdx.x;
    for (int k = 0; k < kSize; ++k) {
        if (row == k)
            for (int j = k; j < kSize; ++j) pivot[j] = a[row * kSize + j];
        __syncthreads();
        if (row > k) {
            const float factor = a[row * kSize + k] / pivot[k];
            for (int j = k; j < kSize; ++j) a[row * kSize + j] -= factor * pivot[j];
        }
        __syncthreads();
    }
}
