// The sums of a matrix' columns; the map in device memory is moved from another matrix to this one by
// tensormap.replace. Wrong: no fence orders the change before the copy that uses the map. map: (16,) words, x: (16, 32)
// in one box, y: (32,): sums of the columns of x; one block of 32
#include "small.cuh"

__device__ __forceinline__ void move_map(uint64* map, const float* to) {
    asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;" ::"l"(map), "l"(to) : "memory");
}

template <bool WRONG>
__device__ __forceinline__ void column_sums(uint64* words, const float* x, float* y) {
    __shared__ alignas(128) float tile[16][32];
    __shared__ uint64 full;
    const int t = threadIdx.x;
    const CUtensorMap* const map = reinterpret_cast<const CUtensorMap*>(words);
    start(&full, 1);
    __syncwarp();
    if (t == 0) {
        move_map(words, x);
        if (!WRONG) fence_map(map);
        barrier_arrive_expect(&full, sizeof(tile));
        tensor_load(tile, map, 0, 0, &full);  // BUG
    }
    barrier_wait(&full, 0);
    float sum = 0.0f;
    for (int i = 0; i < 16; ++i) sum += tile[i][t];
    y[t] = sum;
}

__global__ void wrong(uint64* map, const float* x, float* y) {
    column_sums<true>(map, x, y);
}

__global__ void right(uint64* map, const float* x, float* y) {
    column_sums<false>(map, x, y);
}
