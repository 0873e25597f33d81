// Product of half or bfloat16 matrices by wgmma: persistent blocks, a ring of tiles filled by a producer warpgroup.
#include "warpgroup_tile.cuh"

// How a block works. BM x BN: its tile. GROUPS: consumer warpgroups. TURNS: each of two consumers computes every other
// tile, while the other one stores; otherwise they share a tile's rows. SHARES: blocks of a cluster, one above the
// other, that load B for each other. BUFFERS, BATCH: of a warpgroup's store.
template <int BM, int BN, int GROUPS, bool TURNS, int STAGES, int SHARES, int BUFFERS, int BATCH, int BAND>
struct Shape {
    static constexpr int kM = BM, kN = BN, kGroups = GROUPS, kStages = STAGES, kShares = SHARES;
    static constexpr bool kTurns = TURNS;
    static constexpr int kBuffers = BUFFERS, kBatch = BATCH, kBand = BAND;
    static constexpr int kWide = BM / 64 / (TURNS ? 1 : GROUPS);  // 64-row products of a consumer
    static constexpr int kThreads = (GROUPS + 1) * kGroup;
    static constexpr int kProducer = GROUPS == 1 ? 0 : GROUPS == 2 ? 40 : 32;
    static constexpr int kConsumer = GROUPS == 2 ? 232 : 160;
    static_assert(BM == 64 * kWide * (TURNS ? 1 : GROUPS), "whole products");
};

template <class T, class R, class U, class SHAPE, bool A_K, bool B_K, bool TENSOR_A, bool TENSOR_B, bool TENSOR_D, class E>
__global__ void __launch_bounds__(SHAPE::kThreads, 1) tiles(const __grid_constant__ CUtensorMap map_a,
    const __grid_constant__ CUtensorMap map_b, const __grid_constant__ CUtensorMap map_d, const T* a, const T* b,
    const R* c, R* d, int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row,
    int64 c_col, int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches,
    float alpha, float beta, const U* bias, int64 bias_row, int64 bias_col, int64 bias_batch,
    const R* residual, int64 residual_row, int64 residual_col, int64 residual_batch, float scale, int pairs) {
    constexpr int STAGES = SHAPE::kStages, SHARES = SHAPE::kShares, GROUPS = SHAPE::kGroups;
    constexpr bool TURNS = SHAPE::kTurns, kGathers = !TENSOR_A || !TENSOR_B;
    using A = OperandTile<T, SHAPE::kM, A_K>;
    using B = OperandTile<T, SHAPE::kN, B_K>;
    constexpr int kStage = A::kBytes + B::kBytes;
    constexpr int kStaging = SHAPE::kBuffers * 64 * kRowBytes;  // of a consumer
    static_assert(SHARES == 1 || !kGathers, "blocks gather for themselves");
    extern __shared__ __align__(1024) char shared[];
    char* const staging = shared + STAGES * kStage;
    uint64* const full = reinterpret_cast<uint64*>(staging + GROUPS * kStaging);
    uint64* const empty = full + STAGES;
    const int rank = SHARES > 1 ? cluster_rank() : 0;
    const int group = threadIdx.x / kGroup - 1;  // -1: producer

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(&full[i], kGathers ? kGroup : 1);
            barrier_init(&empty[i], SHARES * (TURNS ? 1 : GROUPS) * kGroup / kWarp);
        }
        fence_barrier_init();
    }
    if constexpr (SHARES > 1)
        cluster_sync();
    else
        __syncthreads();

    using At = Place<SHARES * SHAPE::kM, SHAPE::kN, SHAPE::kBand>;
    const int down = (m + SHARES * SHAPE::kM - 1) / (SHARES * SHAPE::kM);
    const int across = (n + SHAPE::kN - 1) / SHAPE::kN;
    const int all = down * across * batches;
    const int steps = (k + kDepth - 1) / kDepth;
    const int first = blockIdx.x / SHARES, stride = gridDim.x / SHARES;  // in tiles of a cluster
    RingPlace<STAGES> place;
    if (group < 0) {
        if constexpr (GROUPS > 1) registers_decrease<SHAPE::kProducer>();
        if (kGathers || threadIdx.x == 0) {
            const bool leader = threadIdx.x == 0;
            for (int tile = first; tile < all; tile += stride) {
                const At at(tile, down, across);
                const int row = at.m0 + rank * SHAPE::kM;
                const Source<T> of_a{a + at.batch * a_batch, a_row, a_col, m, k};
                const Source<T> of_b{b + at.batch * b_batch, b_col, b_row, n, k};
                for (int step = 0; step < steps; ++step) {
                    char* const stage = shared + place.stage * kStage;
                    barrier_wait<(SHARES > 1)>(&empty[place.stage], place.parity ^ 1);
                    if (leader && (TENSOR_A || TENSOR_B)) {
                        constexpr int kBytes = (TENSOR_A ? A::kBytes : 0) + (TENSOR_B ? B::kBytes : 0);
                        if constexpr (kGathers)
                            barrier_expect(&full[place.stage], kBytes);
                        else
                            barrier_arrive_expect(&full[place.stage], kBytes);
                        if constexpr (TENSOR_A)
                            A::template load<1>(
                                stage, &map_a, row, step * kDepth, a_batch ? at.batch : 0, &full[place.stage], 0);
                        if constexpr (TENSOR_B)
                            B::template load<SHARES>(stage + A::kBytes, &map_b, at.n0, step * kDepth,
                                b_batch ? at.batch : 0, &full[place.stage], rank);
                    }
                    if constexpr (!TENSOR_A) A::gather(stage, of_a, row, step * kDepth);
                    if constexpr (!TENSOR_B) B::gather(stage + A::kBytes, of_b, at.n0, step * kDepth);
                    if constexpr (kGathers) {
                        fence_async_shared();
                        barrier_arrive(&full[place.stage]);
                    }
                    place.next();
                }
            }
        }
    } else {
        if constexpr (GROUPS > 1) registers_increase<SHAPE::kConsumer>();
        const int lane = threadIdx.x % kWarp;
        const bool leader = threadIdx.x % kGroup == 0;  // issues the group's tensor stores
        const int my_rows = TURNS ? 0 : group * SHAPE::kWide * 64;
        const unsigned ring = shared_address(shared);
        constexpr int kCount = SHAPE::kN / 2;
        // In turns: a group waits for a barrier until the other one has waited for all its stages. If it waited for a
        // stage two phases ahead, the parity would not tell them apart.
        constexpr int kTurn = 1 + GROUPS;  // and the next one: named barriers
        if (TURNS && group) {
            place.skip(steps);
            named_arrive(kTurn, 2 * kGroup);
        }
        for (int tile = first + (TURNS ? group * stride : 0); tile < all; tile += (TURNS ? GROUPS : 1) * stride) {
            float sums[SHAPE::kWide][kCount];
            int reading = -1;  // the stage that the products in flight read
            if (TURNS) named_sync(kTurn + group, 2 * kGroup);
            for (int step = 0; step < steps; ++step) {
                barrier_wait(&full[place.stage], place.parity);
                const unsigned stage = ring + place.stage * kStage;
                multiply<T, A_K, B_K>(sums, stage + my_rows * kRowBytes, stage + A::kBytes, step > 0);
                wgmma_wait<1>();  // the products of the step before are complete
                if (reading >= 0) release<SHARES>(&empty[reading], lane);
                reading = place.stage;
                place.next();
            }
            if (TURNS && tile + stride < all) named_arrive(kTurn + 1 - group, 2 * kGroup);
            wgmma_wait<0>();
#pragma unroll
            for (int i = 0; i < SHAPE::kWide; ++i) wgmma_result(sums[i]);
            release<SHARES>(&empty[reading], lane);
            if (TURNS) place.skip(steps);

            const At at(tile, down, across);
            const E finish{c + at.batch * c_batch, c_row, c_col, bias + at.batch * bias_batch, bias_row, bias_col,
                residual + at.batch * residual_batch, residual_row, residual_col, alpha, beta, scale};
            const int m0 = at.m0 + rank * SHAPE::kM + my_rows;
            char* const mine = staging + group * kStaging;
            using Stored = Store<R, kCount, E>;
#pragma unroll
            for (int i = 0; i < SHAPE::kWide; ++i) {
                if constexpr (TENSOR_D) {
                    Stored::template by_tensor<SHAPE::kBuffers, SHAPE::kBatch>(
                        mine, sums[i], &map_d, finish, m0 + i * 64, at.n0, at.batch, m, n, 1 + group, leader);
                } else {
                    const Output<R> out{
                        d + at.batch * d_batch, d_row, d_col, static_cast<int>(m), static_cast<int>(n), pairs != 0};
                    Stored::by_lanes(mine, sums[i], out, finish, m0 + i * 64, at.n0);
                }
            }
        }
        if (TENSOR_D && leader) bulk_wait_read<0>();  // shared memory must exist until it is read
    }
    if constexpr (SHARES > 1) cluster_sync();  // no block may exit while another one arrives at its barriers
}
