// Product of half or bfloat16 matrices by wgmma, with a producer warpgroup: persistent blocks, 128 x 256 outputs per
// tile.
//
// Parameters as in 09_cluster.cu, and the number of batches.
//
// Improvement: as many blocks as multiprocessors compute tile after tile. The producer does not wait for the consumers'
// stores: it loads the next tile's first stages meanwhile. Concurrent blocks cover a nearly square part of the output
// (Place), so they find each other's operands in L2.
//
// Bottleneck: the stores. No products run during them, and each store of a warp has eight rows of 16 bytes (of 16-bit
// outputs), half of a sector.
#include "ring.cuh"

// SHARES: blocks of a cluster, 1 or 2. BAND: rows of their tiles that concurrent blocks cover.
//
// grid: a multiple of SHARES, cluster: SHARES, block: 384, shared: STAGES * 49168 bytes
template <class T, class R, bool A_K, bool B_K, int STAGES, int SHARES, int BAND>
__global__ void __launch_bounds__(3 * kGroup, 1) persistent(const __grid_constant__ CUtensorMap map_a,
    const __grid_constant__ CUtensorMap map_b, int a_batched, int b_batched, R* d, int64 d_row, int64 d_batch, int m,
    int n, int k, int batches, float alpha) {
    constexpr int BM = 128, BN = 256, kRows = SHARES * BM;
    using At = Place<kRows, BN, BAND>;
    extern __shared__ __align__(1024) char shared[];
    Ring<T, BM, BN, A_K, B_K, STAGES, SHARES> ring(shared);
    const int group = consumer_number();  // -1: producer; 0 and 1: consumers
    const int down = (m + kRows - 1) / kRows, across = (n + BN - 1) / BN, steps = (k + kDepth - 1) / kDepth;
    const int all = down * across * batches;  // tiles of a cluster
    const int first = blockIdx.x / SHARES, stride = gridDim.x / SHARES, my_rows = ring.rank * BM;

    if (group < 0) {
        registers_decrease<40>();
        for (int tile = first; threadIdx.x == 0 && tile < all; tile += stride) {
            const At at(tile, down, across);
            ring.fill(&map_a, &map_b, at.m0 + my_rows, at.n0, at.batch * a_batched, at.batch * b_batched, steps);
        }
    } else {
        registers_increase<232>();
        for (int tile = first; tile < all; tile += stride) {
            const At at(tile, down, across);
            float sums[1][BN / 2];
            ring.multiply_all(sums, group * 64, steps);
            store_sums(d + at.batch * d_batch, d_row, sums[0], at.m0 + my_rows + group * 64, at.n0, m, n, alpha);
        }
    }
    ring.sync();
}
