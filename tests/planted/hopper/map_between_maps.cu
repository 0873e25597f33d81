// The sums of the columns of the second of two matrices, whose maps are in device memory. Wrong: the address is in the
// middle of the first map.
// maps: (2, 16) words, y: (32,): sums of the columns of the second matrix; one block of 32
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void column_sums(const uint64* maps, float* y) {
    __shared__ alignas(128) float tile[16][32];
    __shared__ uint64 full;
    const int t = threadIdx.x;
    const CUtensorMap* const map = reinterpret_cast<const CUtensorMap*>(maps + (WRONG ? 8 : 16));
    start(&full, 1);
    __syncwarp();
    if (t == 0) {
        barrier_arrive_expect(&full, sizeof(tile));
        tensor_load(tile, map, 0, 0, &full);  // BUG
    }
    barrier_wait(&full, 0);
    float sum = 0.0f;
    for (int i = 0; i < 16; ++i) sum += tile[i][t];
    y[t] = sum;
}

__global__ void wrong(const uint64* maps, float* y) {
    column_sums<true>(maps, y);
}

__global__ void right(const uint64* maps, float* y) {
    column_sums<false>(maps, y);
}
