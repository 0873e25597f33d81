// Sums of rows of half-precision numbers, two at a time. Wrong: rows have an odd length, so half of them are not
// aligned. x: (rows, cols), y: (rows,)
#include <cuda_fp16.h>

template <bool RIGHT>
__device__ __forceinline__ void body(const __half* x, float* y, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const __half* from = x + row * cols;
    float sum = 0;
    int c = 0;
    if (RIGHT && row % 2 != 0) sum = __half2float(from[c++]);
    for (; c + 1 < cols; c += 2) {
        const __half2 both = *reinterpret_cast<const __half2*>(from + c);  // BUG
        sum += __low2float(both) + __high2float(both);
    }
    if (c < cols) sum += __half2float(from[c]);
    y[row] = sum;
}

__global__ void wrong(const __half* x, float* y, int rows, int cols) {
    body<false>(x, y, rows, cols);
}

__global__ void right(const __half* x, float* y, int rows, int cols) {
    body<true>(x, y, rows, cols);
}
