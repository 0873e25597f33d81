// The sums of a matrix' columns; its map replaces the one of another matrix in device memory. Wrong: no fence orders
// the stores before the copy that uses the map. maps: (2, 16) words, the second map is that of x; x: (16, 32) in one
// box, y: (32,): sums of the columns; one block of 32
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void column_sums(uint64* maps, float* y) {
    __shared__ alignas(128) float tile[16][32];
    __shared__ uint64 full;
    const int t = threadIdx.x;
    const CUtensorMap* const map = reinterpret_cast<const CUtensorMap*>(maps);
    start(&full, 1);
    __syncwarp();
    if (t == 0) {
        for (int i = 0; i < 16; ++i) maps[i] = maps[16 + i];
        if (!WRONG) fence_map(map);
        barrier_arrive_expect(&full, sizeof(tile));
        tensor_load(tile, map, 0, 0, &full);  // BUG
    }
    barrier_wait(&full, 0);
    float sum = 0.0f;
    for (int i = 0; i < 16; ++i) sum += tile[i][t];
    y[t] = sum;
}

__global__ void wrong(uint64* maps, float* y) {
    column_sums<true>(maps, y);
}

__global__ void right(uint64* maps, float* y) {
    column_sums<false>(maps, y);
}
