// Product of half or bfloat16 matrices by mma.sync and ldmatrix; tiles in shared memory are plain (variant 2) or
// swizzled (variant 3).
//
// Parameters as in 01_wmma.cu; `wide`: d's columns are contiguous, n is a multiple of 8 and every row of d is 16-byte
// aligned. An operand's contiguous axis is k (A_K, B_K) or its lines; its rows in memory are 16-byte aligned and the
// contiguous extent is a multiple of 8. Dynamic shared memory: a tile of each operand.
//
// Improvement: 16-byte copies, and fragments with a known layout, so that ldmatrix loads four 8 x 8 matrices at once
// and a warp's 64 x 32 outputs stay in registers. Without the swizzle the 8 rows of such a matrix are in the same four
// banks, and each ldmatrix takes 8 times as long (see tensor_tile.cuh).
//
// Bottleneck: latency. Copying and multiplying alternate. The next variant copies ahead.
#include "tensor_tile.cuh"

// grid: (tiles, 1, batches up to 65,535), block: BM / WM * BN / WN warps
template <class T, class R, int BM, int BN, int WM, int WN, bool A_K, bool B_K, bool SWIZZLED>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * kWarp) mma_tile(const T* a, const T* b, const R* c, R* d,
    int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row, int64 c_col,
    int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches, float alpha,
    float beta, int wide) {
    using Tile = TensorTile<T, BM, BN, WM, WN, A_K, B_K, SWIZZLED>;
    extern __shared__ __align__(128) char shared[];
    const unsigned tiles = shared_address(shared);
    const int64 across = (n + BN - 1) / BN;     // tiles in a row of tiles
    const int64 m0 = blockIdx.x / across * BM;  // 0 .. m - 1
    const int64 n0 = blockIdx.x % across * BN;  // 0 .. n - 1
    for (int64 z = blockIdx.z; z < batches; z += gridDim.z) {
        typename Tile::A in_a(a + z * a_batch, a_row, a_col, m0, m, k);
        typename Tile::B in_b(b + z * b_batch, b_col, b_row, n0, n, k);
        Tile tile;
        typename Tile::Fragments fragments;
        for (int64 k0 = 0; k0 < k; k0 += kDepth) {
            in_a.template bring<false, false>(shared);
            in_b.template bring<false, false>(shared + Tile::A::kBytes);
            in_a.next(), in_b.next();
            __syncthreads();
#pragma unroll
            for (int s = 0; s < kDepth / 16; ++s) {
                tile.load(fragments, tiles, s);
                tile.multiply(fragments);
            }
            __syncthreads();  // before the tiles are filled again
        }
        const R* of_c = c + z * c_batch;
        R* of_d = d + z * d_batch;
        tile.store(shared, of_c, c_row, c_col, of_d, d_row, d_col, m0, n0, m, n, alpha, beta, wide);
        __syncthreads();
    }
}
