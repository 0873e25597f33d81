// The sums of a matrix' columns; it is the second of several. Wrong: a copy with two coordinates uses the map, which
// has three dimensions. x: map of (3, 16, 32) with boxes of 1 x 16 x 32, y: (32,): y = sums of the columns of x[1]; one
// block of 32
#include "small.cuh"

__device__ __forceinline__ void tensor_load_3d(
    void* shared, const CUtensorMap* map, int x, int y, int z, uint64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(shared_address(shared)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
        : "memory");
}

template <bool WRONG>
__device__ __forceinline__ void column_sums(const CUtensorMap* x, float* y) {
    __shared__ alignas(128) float tile[16][32];
    __shared__ uint64 full;
    const int t = threadIdx.x;
    start(&full, 1);
    __syncwarp();
    if (t == 0) {
        barrier_arrive_expect(&full, sizeof(tile));
        if (WRONG)
            tensor_load(tile, x, 0, 16, &full);  // BUG
        else
            tensor_load_3d(tile, x, 0, 0, 1, &full);
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
