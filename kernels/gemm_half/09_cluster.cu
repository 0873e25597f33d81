// Product of half or bfloat16 matrices by wgmma, with a producer warpgroup: clusters of two blocks share the columns of
// B, 128 x 256 outputs per block.
//
// Parameters as in 06_tensor_copies.cu; B's map has boxes of 128 lines, or of 64 lines and 32 k.
//
// Improvement: multicast. The two blocks of a cluster compute tiles one above the other, which need the same columns of
// B. Each block loads half of them into both. So a block loads 128 rows and 128 columns per step from L2, not 256
// columns. A stage is empty when the consumers of both blocks have released it: they arrive at both blocks' barriers.
//
// Bottleneck: the start and the end of a block. No products run while the first stages load and while the sums are
// stored, and the next block starts only after that. The two blocks also wait for each other.
#include "ring.cuh"

constexpr int kShares = 2;  // blocks of a cluster

// grid: (ceil(m / 256) * 2, ceil(n / 256), batches), cluster: 2, block: 384, shared: STAGES * 49168 bytes
template <class T, class R, bool A_K, bool B_K, int STAGES>
__global__ void __launch_bounds__(3 * kGroup, 1) cluster(const __grid_constant__ CUtensorMap map_a,
    const __grid_constant__ CUtensorMap map_b, int a_batched, int b_batched, R* d, int64 d_row, int64 d_batch, int m,
    int n, int k, float alpha) {
    constexpr int BM = 128, BN = 256;
    using A = OperandTile<T, BM, A_K>;
    using B = OperandTile<T, BN, B_K>;
    constexpr int kStage = A::kBytes + B::kBytes;
    extern __shared__ __align__(1024) char shared[];
    uint64* const full = reinterpret_cast<uint64*>(shared + STAGES * kStage);
    uint64* const empty = full + STAGES;
    const int group = consumer_number();  // -1: producer; 0 and 1: consumers
    const int rank = cluster_rank();
    const int m0 = blockIdx.x * BM, n0 = blockIdx.y * BN, batch = blockIdx.z;
    const int steps = (k + kDepth - 1) / kDepth;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], kShares * 2 * kGroup / kWarp);  // the consumers' warps of both blocks
        }
        fence_barrier_init();
    }
    cluster_sync();  // the other block's copies and consumers arrive at these barriers

    RingPlace<STAGES> place;
    if (group < 0) {
        registers_decrease<40>();
        for (int step = 0; threadIdx.x == 0 && step < steps; ++step) {
            char* const stage = shared + place.stage * kStage;
            uint64* const arrived = &full[place.stage];
            barrier_wait<true>(&empty[place.stage], place.parity ^ 1);
            barrier_arrive_expect(arrived, kStage);  // A, and both halves of B
            A::load(stage, &map_a, m0, step * kDepth, batch * a_batched, arrived);
            B::template load<kShares>(  // a half of B, into both blocks
                stage + A::kBytes, &map_b, n0, step * kDepth, batch * b_batched, arrived, rank);
            place.next();
        }
    } else {
        registers_increase<232>();
        const int lane = threadIdx.x % kWarp;
        float sums[1][BN / 2];
        int reading = -1;  // the stage that the products in flight read
        for (int step = 0; step < steps; ++step) {
            barrier_wait(&full[place.stage], place.parity);
            const unsigned stage = shared_address(shared) + place.stage * kStage;
            multiply<T, A_K, B_K>(sums, stage + group * 64 * kRowBytes, stage + A::kBytes, step > 0);
            wgmma_wait<1>();  // the products of the step before are complete
            if (reading >= 0 && lane < kShares) barrier_arrive_at(&empty[reading], lane);
            reading = place.stage;
            place.next();
        }
        wgmma_wait<0>();
        wgmma_result(sums[0]);
        store_sums(d + batch * d_batch, d_row, sums[0], m0 + group * 64, n0, m, n, alpha);
    }
    cluster_sync();  // no block may exit while the other one copies to it, or arrives at its barriers
}
