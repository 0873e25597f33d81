// Scales rows of half values by their norm. Wrong: the sum of squares is half, and overflows at 65504.
// x, y: (rows, columns)
#include <cuda_fp16.h>

__global__ void wrong(const __half* x, __half* y, int rows, int columns) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    __half sum = __float2half(0.0f);
    for (int k = 0; k < columns; ++k) {
        const __half value = x[row * columns + k];
        sum = __hadd(sum, __hmul(value, value));  // BUG
    }
    const float scale = 1.0f / (1.0f + sqrtf(__half2float(sum)));
    for (int k = 0; k < columns; ++k) {
        const float value = __half2float(x[row * columns + k]);
        y[row * columns + k] = __float2half(scale > 0.0f ? value * scale : __half2float(sum));
    }
}

__global__ void right(const __half* x, __half* y, int rows, int columns) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int k = 0; k < columns; ++k) {
        const float value = __half2float(x[row * columns + k]);
        sum += value * value;
    }
    const float scale = 1.0f / (1.0f + sqrtf(sum));
    for (int k = 0; k < columns; ++k) y[row * columns + k] = __float2half(__half2float(x[row * columns + k]) * scale);
}
