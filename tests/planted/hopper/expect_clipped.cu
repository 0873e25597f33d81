// Sums of the rows of a matrix that does not consist of whole tiles. Wrong: for the last tile the barrier expects the
// bytes within the matrix; elements outside count, too.
// x: map of (20, 32) with boxes of 16 x 32, y: (20,): y = sums of the rows of x; 2 blocks of 32
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void row_sums(const CUtensorMap* x, float* y, int rows) {
    __shared__ alignas(128) float tile[16][32];
    __shared__ uint64 full;
    const int t = threadIdx.x, first = blockIdx.x * 16;
    start(&full, 1);
    __syncwarp();
    if (t == 0) {
        const int inside = rows - first < 16 ? rows - first : 16;
        barrier_arrive_expect(&full, (WRONG ? inside : 16) * sizeof(tile[0]));  // BUG
        tensor_load(tile, x, 0, first, &full);
    }
    barrier_wait(&full, 0);  // BUG
    float sum = 0.0f;
    for (int i = 0; i < 32; ++i) sum += tile[t % 16][(t + i) % 32];
    if (t < 16 && first + t < rows) y[first + t] = sum;
}

__global__ void wrong(const __grid_constant__ CUtensorMap x, float* y, int rows) {
    row_sums<true>(&x, y, rows);
}

__global__ void right(const __grid_constant__ CUtensorMap x, float* y, int rows) {
    row_sums<false>(&x, y, rows);
}
