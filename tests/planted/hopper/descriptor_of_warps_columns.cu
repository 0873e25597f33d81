// Products with four tiles of B, one after another. Wrong: each warp takes the tiles in its own order.
// a: (64, 64), b: (4, 8, 64), y: (64, 8): y = a * (b[0] + b[1] + b[2] + b[3])^T; one block of 128
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void product(const Element* a, const Element* b, float* y) {
    __shared__ alignas(1024) Element tile_a[kRowsA * kDeep];
    __shared__ alignas(1024) Element tiles_b[4][kRowsB * kDeep];
    put_rows(tile_a, a, kRowsA);
    put_rows(tiles_b[0], b, 4 * kRowsB);
    fence_async_shared();
    __syncthreads();
    float sums[4] = {};
    wgmma_fence();
    for (int i = 0; i < 4; ++i) {
        const int of = WRONG ? (i + threadIdx.x / kWarp) % 4 : i;
        multiply(sums, wgmma_operand(tile_a), wgmma_operand(tiles_b[of]));  // BUG
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_result(sums);
    store_sums(y, sums);
}

__global__ void __launch_bounds__(128) wrong(const Element* a, const Element* b, float* y) {
    product<true>(a, b, y);
}

__global__ void __launch_bounds__(128) right(const Element* a, const Element* b, float* y) {
    product<false>(a, b, y);
}
