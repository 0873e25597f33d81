// Product of half or bfloat16 matrices by wgmma: persistent blocks, whose two consumer warpgroups compute tiles in
// turns or share one.
//
// Parameters: tensor maps of A, B and D (that of D is not used if lanes store it), then as in 04_pipelined.cu. The
// boxes of the maps are 64 elements of an operand's contiguous axis times BM or BN / SHARES lines, or times 64 (B: 64 /
// SHARES) k; of D, see Store. `vector`: see Output. k is at least 1.
//
// A block's first warpgroup is the producer: one thread fills a ring of STAGES pairs of operand tiles by tensor copies.
// The consumers multiply. In turns (TURNS), each computes whole tiles, and stores one while the other multiplies the
// next one, so the tensor cores always have work, also if the epilogue is long. If they share a tile, each
// computes half of its rows, and the second one starts late, so that one still multiplies while the other stores.
//
// Blocks can share the loads of B in clusters. That pays only if rows of the operands are not whole lines of L2.
//
// Bottleneck: power. Products alone, without copies, reach 930 TFLOP/s on an H200 at its limit of 700 W. With the
// copies to the ring, the same power allows a clock of only 1.5 GHz of 1.98.
#include "warpgroup_tile.cuh"

// BM x BN: a tile. GROUPS: consumers. SHARES: blocks of a cluster; their tiles are one above the other, and each loads
// a part of B for all. BUFFERS, BATCH: of a consumer's store. BAND: rows of clusters' tiles that concurrent blocks
// cover.
template <int BM, int BN, int GROUPS, bool TURNS, int STAGES, int SHARES, int BUFFERS, int BATCH, int BAND>
struct Shape {
    static constexpr int kM = BM, kN = BN, kGroups = GROUPS, kStages = STAGES, kShares = SHARES, kBand = BAND;
    static constexpr int kBuffers = BUFFERS, kBatch = BATCH;
    static constexpr bool kTurns = TURNS;
    static constexpr int kWide = BM / 64 / (TURNS ? 1 : GROUPS);  // products of 64 rows of a consumer
    static constexpr int kThreads = (GROUPS + 1) * kGroup;
    static constexpr int kLead = GROUPS == 2 && !TURNS ? 1 : 0;
    static_assert(GROUPS <= 2 && (GROUPS == 2 || !TURNS) && BM % (64 * (TURNS ? 1 : GROUPS)) == 0, "whole products");
};

// grid: a multiple of SHARES, cluster: SHARES, block: 128 per consumer and 128, shared: the ring, BUFFERS * 8192 bytes
// per consumer, 16 per stage
template <class T, class R, class U, class SHAPE, bool A_K, bool B_K, bool TENSOR_D, bool BY_COLUMNS, int ACTIVATION,
    bool ADDS_C, bool BIAS, bool RESIDUAL>
__global__ void __launch_bounds__(SHAPE::kThreads, 1) tiles(const __grid_constant__ CUtensorMap map_a,
    const __grid_constant__ CUtensorMap map_b, const __grid_constant__ CUtensorMap map_d, const T* a, const T* b,
    const R* c, R* d, int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row,
    int64 c_col, int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches,
    float alpha, float beta, const U* bias, int64 bias_row, int64 bias_col, int64 bias_batch, const R* residual,
    int64 residual_row, int64 residual_col, int64 residual_batch, float scale, int vector) {
    constexpr int STAGES = SHAPE::kStages, GROUPS = SHAPE::kGroups, SHARES = SHAPE::kShares;
    constexpr bool TURNS = SHAPE::kTurns;
    using Finish = Epilogue<U, R, ACTIVATION, ADDS_C, BIAS, RESIDUAL>;
    using Stored = Store<R, SHAPE::kN / 2, BY_COLUMNS, Finish>;
    using Load = Loader<T, SHAPE::kM, SHAPE::kN, A_K, B_K, true, true, SHARES>;
    using At = Place<SHARES * SHAPE::kM, SHAPE::kN, SHAPE::kBand>;
    constexpr int kStaging = SHAPE::kBuffers * 8192;  // of a consumer
    extern __shared__ __align__(1024) char shared[];
    char* const staging = shared + STAGES * Load::kStage;
    uint64* const full = reinterpret_cast<uint64*>(staging + GROUPS * kStaging);
    uint64* const empty = full + STAGES;
    const int rank = SHARES > 1 ? cluster_rank() : 0;
    const int group = __shfl_sync(kAllLanes, threadIdx.x / kGroup, 0) - 1;  // -1: producer

    if (threadIdx.x == 0) {
        tensor_prefetch(&map_a);
        tensor_prefetch(&map_b);
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(&full[i], Load::kArrivals);
            barrier_init(&empty[i], SHARES * (TURNS ? 1 : GROUPS) * kGroup / kWarp);
        }
        fence_barrier_init();
    }
    if constexpr (SHARES > 1)
        cluster_sync();
    else
        __syncthreads();

    const int down = (m + SHARES * SHAPE::kM - 1) / (SHARES * SHAPE::kM);
    const int across = (n + SHAPE::kN - 1) / SHAPE::kN;
    const int all = down * across * batches;
    const int steps = (k + kDepth - 1) / kDepth;
    const int first = blockIdx.x / SHARES, stride = gridDim.x / SHARES;  // in tiles of a cluster
    RingPlace<STAGES> place;
    if (group < 0) {
        if constexpr (GROUPS == 2) registers_decrease<40>();
        if (threadIdx.x == 0) {
            for (int tile = first; tile < all; tile += stride) {
                const At at(tile, down, across);
                const Load load(&map_a, &map_b, {a + at.batch * a_batch, a_row, a_col, m, k},
                    {b + at.batch * b_batch, b_col, b_row, n, k}, at.m0 + rank * SHAPE::kM, at.n0,
                    a_batch ? at.batch : 0, b_batch ? at.batch : 0, rank);
                for (int step = 0; step < steps; ++step) {
                    barrier_wait<(SHARES > 1)>(&empty[place.stage], place.parity ^ 1);
                    load(shared + place.stage * Load::kStage, step * kDepth, &full[place.stage]);
                    place.next();
                }
            }
        }
    } else {
        if constexpr (GROUPS == 2) registers_increase<232>();
        const int lane = threadIdx.x % kWarp;
        const bool leader = threadIdx.x % kGroup == 0;  // issues the group's tensor stores
        const int my_rows = TURNS ? 0 : group * SHAPE::kWide * 64;
        const unsigned ring = shared_address(shared);
        char* const mine = staging + group * kStaging;
        // Named barriers: group + 1 for a group's store; this one and the next one to start in turns, or late. In turns
        // a group must not wait for a stage two phases ahead, whose parity is that of the last phase. So it waits here
        // until the other one has waited for all its stages.
        constexpr int kStart = 1 + GROUPS;
        if (TURNS && group) {
            place.skip(steps);
            named_arrive(kStart, 2 * kGroup);
        }
        if (SHAPE::kLead && group) named_sync(kStart, 2 * kGroup);
        for (int tile = first + (TURNS ? group * stride : 0); tile < all; tile += (TURNS ? GROUPS : 1) * stride) {
            float sums[SHAPE::kWide][SHAPE::kN / 2];
            int reading = -1;  // the stage that the products in flight read
            if (TURNS) named_sync(kStart + group, 2 * kGroup);
            for (int step = 0; step < steps; ++step) {
                barrier_wait(&full[place.stage], place.parity);
                const unsigned stage = ring + place.stage * Load::kStage;
                multiply<T, A_K, B_K>(sums, stage + my_rows * kRowBytes, stage + Load::A::kBytes, step > 0);
                if (SHAPE::kLead && group == 0 && step == 0 && tile == first) named_arrive(kStart, 2 * kGroup);
                wgmma_wait<1>();  // the products of the step before are complete
                if (reading >= 0) release<SHARES>(&empty[reading], lane);
                reading = place.stage;
                place.next();
            }
            if (TURNS && tile + stride < all) named_arrive(kStart + 1 - group, 2 * kGroup);
            wgmma_wait<0>();
#pragma unroll
            for (int i = 0; i < SHAPE::kWide; ++i) wgmma_result(sums[i]);
            release<SHARES>(&empty[reading], lane);
            if (TURNS) place.skip(steps);

            const At at(tile, down, across);
            const Finish finish{c + at.batch * c_batch, c_row, c_col, bias + at.batch * bias_batch, bias_row, bias_col,
                residual + at.batch * residual_batch, residual_row, residual_col, alpha, beta, scale};
            const int m0 = at.m0 + rank * SHAPE::kM + my_rows;
#pragma unroll
            for (int i = 0; i < SHAPE::kWide; ++i) {
                if constexpr (TENSOR_D) {
                    Stored::template by_tensor<SHAPE::kBuffers, SHAPE::kBatch>(
                        mine, sums[i], &map_d, finish, m0 + i * 64, at.n0, at.batch, m, n, 1 + group, leader);
                } else {
                    const Output<R> out{
                        d + at.batch * d_batch, d_row, d_col, static_cast<int>(m), static_cast<int>(n), vector != 0};
                    Stored::by_lanes(mine, sums[i], out, finish, m0 + i * 64, at.n0, 1 + group);
                }
            }
        }
        if (TENSOR_D && leader) bulk_wait_read<0>();  // shared memory must exist until it is read
    }
    if constexpr (SHARES > 1) cluster_sync();  // no block may exit while another one arrives at its barriers
}
