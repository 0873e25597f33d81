// Wrong: one matrix per block in z, without a loop, so matrices past the grid's limit of 65,535 are never written.
#include "../../kernels/common/numbers.cuh"

__global__ void wrong(const float* a, const float* b, float* c, int64 a_matrix, int64 a_row, int64 a_col,
    int64 b_matrix, int64 b_row, int64 b_col, int64 c_matrix, int64 c_row, int64 c_col, int64 matrices, int64 rows,
    int64 cols) {
    const int64 m = blockIdx.z, row = blockIdx.y * blockDim.y + threadIdx.y,
                col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows || col >= cols) return;
    c[m * c_matrix + row * c_row + col * c_col] =
        a[m * a_matrix + row * a_row + col * a_col] + b[m * b_matrix + row * b_row + col * b_col];
}
