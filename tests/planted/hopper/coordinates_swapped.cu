// Sums of the columns of a wide matrix, 32 of them per block. Wrong: the coordinates are in the order of rows and
// columns; the copy expects the contiguous one first. x: map of (16, 256) with boxes of 16 x 32, y: (256,): y = sums of
// the columns of x; 8 blocks of 32
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void column_sums(const CUtensorMap* x, float* y) {
    __shared__ alignas(128) float tile[16][32];
    __shared__ uint64 full;
    const int t = threadIdx.x, first = blockIdx.x * 32;
    start(&full, 1);
    __syncwarp();
    if (t == 0) {
        barrier_arrive_expect(&full, sizeof(tile));
        tensor_load(tile, x, WRONG ? 0 : first, WRONG ? first : 0, &full);  // BUG
    }
    barrier_wait(&full, 0);
    float sum = 0.0f;
    for (int i = 0; i < 16; ++i) sum += tile[i][t];
    y[first + t] = sum;
}

__global__ void wrong(const __grid_constant__ CUtensorMap x, float* y) {
    column_sums<true>(&x, y);
}

__global__ void right(const __grid_constant__ CUtensorMap x, float* y) {
    column_sums<false>(&x, y);
}
