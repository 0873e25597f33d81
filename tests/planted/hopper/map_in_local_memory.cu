// The sums of the columns of one of two matrices. Wrong: the map that is needed is copied to a local variable.
// a, b: maps of (16, 32), the whole in one box, y: (32,): y = sums of the columns of b if `second`, else of a; one
// block of 32
#include "small.cuh"

__device__ __forceinline__ void column_sums(const CUtensorMap* x, float* y) {
    __shared__ alignas(128) float tile[16][32];
    __shared__ uint64 full;
    const int t = threadIdx.x;
    start(&full, 1);
    __syncwarp();
    if (t == 0) {
        barrier_arrive_expect(&full, sizeof(tile));
        tensor_load(tile, x, 0, 0, &full);  // BUG
    }
    barrier_wait(&full, 0);
    float sum = 0.0f;
    for (int i = 0; i < 16; ++i) sum += tile[i][t];
    y[t] = sum;
}

__global__ void wrong(
    const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* y, int second) {
    const CUtensorMap chosen = second ? b : a;
    column_sums(&chosen, y);
}

__global__ void right(
    const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* y, int second) {
    column_sums(second ? &b : &a, y);
}
