// Wrong: matrix addition by one 16x16 block, one element per thread: elements past the first tile are never written.
#include "../../kernels/common/numbers.cuh"

__global__ void wrong(const float* a, const float* b, float* c, int64 a_row, int64 a_col, int64 b_row, int64 b_col,
    int64 c_row, int64 c_col, int64 rows, int64 cols) {
    const int64 row = threadIdx.y, col = threadIdx.x;
    if (row < rows && col < cols)
        c[row * c_row + col * c_col] = a[row * a_row + col * a_col] + b[row * b_row + col * b_col];
}
