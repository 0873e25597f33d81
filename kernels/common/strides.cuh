// The strides of a matrix, or of a batch of matrices, as one kernel parameter.
#pragma once
#include "numbers.cuh"

// Elements from one row, column and matrix to the next, of any sign. A transposed operand has `row` and `col` swapped.
// 64-bit: with 50,000 columns, row * strides.row passes 2^31 at row 42,950.
//
// Kernels take it as `const __grid_constant__ Strides`: its fields are then read from constant memory at each use. A
// plain Strides parameter is copied when the kernel starts, all fields of all operands, and the copy took registers
// (120 instead of 71 in gemv_rows<8, 4, 1>) and spilled in some of the tiles of 09_pipelined.cu.
//
// A launch passes the 24 bytes that `Operand.strides` in cudakit/families/gemm_problem.py packs, and checks only how
// many they are; the pointers stay parameters of their own, whose dtype, device and lifetime it checks.
struct Strides {
    int64 row, col, batch;

    // From the operand's first element to element (r, c) of matrix `z`.
    __device__ __forceinline__ int64 offset(int64 z, int64 r, int64 c) const { return z * batch + r * row + c * col; }
};
