// Two phases in one cooperative launch: squares, then each minus its mirror image. Wrong: between the phases is a block
// barrier instead of a grid barrier.
// x, squares, y: (gridDim.x * blockDim.x,): y[i] = x[i]^2 - x[n - 1 - i]^2; a cooperative launch
#include <cooperative_groups.h>

__global__ void wrong(const float* x, float* squares, float* y) {
    const int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    squares[i] = x[i] * x[i];  // OTHER
    cooperative_groups::this_thread_block().sync();
    y[i] = squares[i] - squares[n - 1 - i];  // BUG
}

__global__ void right(const float* x, float* squares, float* y) {
    const int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    squares[i] = x[i] * x[i];
    cooperative_groups::this_grid().sync();
    y[i] = squares[i] - squares[n - 1 - i];
}
