// Row sums of half values. Wrong: the accumulator is half, and at 256 an addend of 0.1 has no effect any more.
// x: (rows, columns), y: (rows,)
#include <cuda_fp16.h>

__global__ void wrong(const __half* x, float* y, int rows, int columns) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    __half sum = __float2half(0.0f);
    for (int k = 0; k < columns; ++k) sum = __hadd(sum, x[row * columns + k]);  // BUG
    y[row] = __half2float(sum);
}

__global__ void right(const __half* x, float* y, int rows, int columns) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int k = 0; k < columns; ++k) sum += __half2float(x[row * columns + k]);
    y[row] = sum;
}
