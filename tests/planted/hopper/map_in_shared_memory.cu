// The sums of a matrix' columns. Wrong: the map is copied to shared memory, and copies cannot use it there.
// x: map of (16, 32), the whole in one box, y: (32,): y = sums of the columns of x; one block of 32
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void column_sums(const CUtensorMap* x, float* y) {
    __shared__ CUtensorMap map;
    __shared__ alignas(128) float tile[16][32];
    __shared__ uint64 full;
    const int t = threadIdx.x;
    start(&full, 1);
    if (t == 0) map = *x;
    fence_async_shared();
    __syncwarp();
    if (t == 0) {
        barrier_arrive_expect(&full, sizeof(tile));
        tensor_load(tile, WRONG ? &map : x, 0, 0, &full);  // BUG
    }
    barrier_wait(&full, 0);
    float sum = 0.0f;
    for (int i = 0; i < 16; ++i) sum += tile[i][t];
    y[t] = sum;
}

__global__ void wrong(const __grid_constant__ CUtensorMap x, float* y) {
    column_sums<true>(&x, y);
}

__global__ void right(const __grid_constant__ CUtensorMap x, float* y) {
    column_sums<false>(&x, y);
}
