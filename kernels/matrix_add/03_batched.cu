// C[m] = A[m] + B[m] for a batch of matrices in one launch: the grid's z axis is the matrix, x and y are its 16x16
// tiles.
//
// A, B, C are (matrices, rows, cols) with any strides in elements. Offsets are 64-bit: 32,768 matrices of 256x256 have
// 2^31 elements, too many for an int. A grid has at most 65,535 blocks along y and z; grid-stride loops cover larger
// batches and matrices.
//
// Bottleneck: memory bandwidth, in segments of 64 bytes per warp. If everything is contiguous, the next variant uses a
// flat index.
#include "../common/numbers.cuh"

// a, b, c: (matrices, rows, cols); block: (bx, by);
// grid: (ceil(cols / bx), at most 65535 of ceil(rows / by), at most 65535 of matrices)
__global__ void batched(const float* a, const float* b, float* c, int64 a_matrix, int64 a_row, int64 a_col,
    int64 b_matrix, int64 b_row, int64 b_col, int64 c_matrix, int64 c_row, int64 c_col, int64 matrices, int64 rows,
    int64 cols) {
    const int64 col = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (col >= cols) return;
#pragma unroll 1
    for (int64 matrix = blockIdx.z; matrix < matrices; matrix += gridDim.z)
#pragma unroll 1
        for (int64 row = static_cast<int64>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows;
            row += static_cast<int64>(gridDim.y) * blockDim.y)
            c[matrix * c_matrix + row * c_row + col * c_col] =
                a[matrix * a_matrix + row * a_row + col * a_col] + b[matrix * b_matrix + row * b_row + col * b_col];
}
