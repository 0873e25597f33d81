// Product of half or bfloat16 matrices by wgmma, with a producer warpgroup and tensor stores: persistent blocks,
// 128 x 256 outputs per tile.
//
// Parameters as in 10_persistent.cu; instead of D its tensor map, with boxes of 64 rows and 128 bytes.
//
// Improvement: tensor stores. A consumer rounds its sums and writes them to shared memory by stmatrix, 64 rows of 128
// bytes at a time, swizzled. One thread starts the store of such a box, and the consumer goes on to the next one, or to
// the next tile: it waits only before it overwrites a box that may not have been read yet. The copy engine writes whole
// sectors, and drops elements outside the output.
//
// Bottleneck: both consumers store at the same time, and meanwhile no products run.
#include "ring.cuh"
#include "warpgroup_store.cuh"

// SHARES, BAND: as in 10_persistent.cu.
//
// grid: a multiple of SHARES, cluster: SHARES, block: 384, shared: STAGES * 49168 + 32768 bytes
template <class T, class R, bool A_K, bool B_K, int STAGES, int SHARES, int BAND>
__global__ void __launch_bounds__(3 * kGroup, 1) stored(const __grid_constant__ CUtensorMap map_a,
    const __grid_constant__ CUtensorMap map_b, int a_batched, int b_batched, const __grid_constant__ CUtensorMap map_d,
    int m, int n, int k, int batches, float alpha) {
    constexpr int BM = 128, BN = 256, kRows = SHARES * BM;
    constexpr int kBuffers = 2, kStaging = kBuffers * 8192;  // of a consumer's store
    using At = Place<kRows, BN, BAND>;
    using Scaled = Epilogue<R, R, kNoActivation, kNoArray, kNoBias, kNoArray>;
    using Stored = Store<R, BN / 2, false, Scaled>;
    extern __shared__ __align__(1024) char shared[];
    Ring<T, BM, BN, A_K, B_K, STAGES, SHARES> ring(shared + 2 * kStaging);
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
        const bool leader = threadIdx.x % kGroup == 0;  // issues the consumer's tensor stores
        for (int tile = first; tile < all; tile += stride) {
            const At at(tile, down, across);
            float sums[1][BN / 2];
            ring.multiply_all(sums, group * 64, steps);
            Stored::template by_tensor<kBuffers, 1>(shared + group * kStaging, sums[0], &map_d,
                {nullptr, 0, 0, nullptr, 0, 0, nullptr, 0, 0, alpha, 0.0f, 1.0f}, at.m0 + my_rows + group * 64, at.n0,
                at.batch, m, n, 1 + group, leader);
        }
        if (leader) bulk_wait_read<0>();  // shared memory must exist until it is read
    }
    ring.sync();
}
