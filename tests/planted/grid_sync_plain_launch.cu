// Two phases with the grid's barrier between them. Wrong: the launch is not cooperative, so the barrier is unavailable.
// x, middle, y: (gridDim.x * blockDim.x,): y[i] = 2 * x[n - 1 - i]
#include <cooperative_groups.h>

__global__ void wrong(const int* x, int* middle, int* y) {
    const int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    middle[i] = 2 * x[i];
    cooperative_groups::this_grid().sync();  // BUG
    y[i] = middle[n - 1 - i];
}

__global__ void right(const int* x, int* middle, int* y) {
    const int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    middle[i] = 2 * x[i];
    cooperative_groups::this_grid().sync();
    y[i] = middle[n - 1 - i];
}
