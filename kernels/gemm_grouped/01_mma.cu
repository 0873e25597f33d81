// Products of many groups of rows with a matrix per group, in one launch, by mma.sync: persistent blocks, with copies
// one step ahead of the arithmetic.
//
// Parameters: A, B and their strides (elements), then as in 02_tiles.cu; `wide` and the operands' layout as in
// gemm_half/02_mma.cu, A contiguous along k. Dynamic shared memory: two tiles of each operand, and the lists of Groups.
//
// Bottleneck: latency. A block's copies for the next tile start after it has stored one; see gemm_half/04_pipelined.cu.
#include "../gemm_half/tensor_tile.cuh"
#include "groups.cuh"

// grid: any, block: BM / WM * BN / WN warps
template <class T, class R, class U, int BM, int BN, int WM, int WN, bool B_K, int ACTIVATION, int BIAS>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * kWarp) grouped_mma(const T* a, int64 a_row, int64 a_batch,
    const T* b, int64 b_row, int64 b_col, int64 b_batch, const int* sizes, int64 step, int count, bool masked, R* d,
    int64 d_row, int64 d_col, int64 d_batch, int rows, int n, int k, float alpha, const U* bias, int64 bias_col,
    int64 bias_batch, int wide) {
    using Tile = TensorTile<T, BM, BN, WM, WN, true, B_K, true>;
    extern __shared__ __align__(128) char shared[];
    const Groups groups(shared + 2 * Tile::kStage, count, masked);
    const int across = (n + BN - 1) / BN;  // tiles in a row of tiles
    if (threadIdx.x < kWarp) groups.list<BM>(sizes, step, rows, across);
    __syncthreads();

    const int all = groups.all(), steps = (k + kDepth - 1) / kDepth;
    for (int number = blockIdx.x; number < all; number += gridDim.x) {
        const int group = groups.of(number), end = groups.end(group);
        const int in_group = number - groups.tiles[group];
        const int down = (end - groups.first(group) + BM - 1) / BM;
        const int m0 = groups.first(group) + in_group % down * BM, n0 = in_group / down * BN;
        typename Tile::A in_a(a + group * a_batch, a_row, 1, m0, end, k);
        typename Tile::B in_b(b + group * b_batch, b_col, b_row, n0, n, k);
        Tile tile;
        const auto copy = [&](int to) {  // starts the copies of the next step
            in_a.template bring<false, true>(shared + to * Tile::kStage);
            in_b.template bring<false, true>(shared + to * Tile::kStage + Tile::A::kBytes);
            in_a.next(), in_b.next();
            copy_async_commit();
        };
        if (steps > 0) copy(0);
        for (int s = 0; s < steps; ++s) {
            copy_async_wait_for<0>();
            __syncthreads();  // this step's tiles are visible, and no thread reads the other ones any more
            if (s + 1 < steps) copy((s + 1) % 2);
            const unsigned stage = shared_address(shared) + s % 2 * Tile::kStage;
            typename Tile::Fragments fragments;
#pragma unroll
            for (int i = 0; i < kDepth / 16; ++i) {
                tile.load(fragments, stage, i);
                tile.multiply(fragments);
            }
        }
        __syncthreads();  // before the sums are staged in the tiles' memory
        const Epilogue<U, R, ACTIVATION, kNoArray, BIAS, kNoArray> epilogue{
            nullptr, 0, 0, bias + group * bias_batch, 0, bias_col, nullptr, 0, 0, alpha, 0.0f, 1.0f};
        tile.store(shared, epilogue, d + group * d_batch, d_row, d_col, m0, n0, end, n, wide);
        __syncthreads();  // before the next tile's copies
    }
}
