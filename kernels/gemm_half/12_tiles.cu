// Product of half or bfloat16 matrices by wgmma: persistent blocks, whose two consumer warpgroups compute tiles in
// turns or share one.
//
// Parameters: four tensor maps, then as in 04_pipelined.cu. The maps are those of A, of B for whole tiles, of B for
// tail tiles (not used if there are none) and of D (not used if lanes store it). The boxes of the maps are 64 elements
// of an operand's contiguous axis times BM, or BN / SHARES or TAIL / SHARES lines, or times 64 (B: 64 / SHARES) k; of
// D, see Store. k is at least 1.
//
// A block's first warpgroup is the producer: one thread fills a ring of STAGES pairs of operand tiles by tensor copies.
// The consumers multiply. In turns (TURNS), each computes whole tiles, and stores one while the other multiplies the
// next one, so the tensor cores always have work, also if the epilogue is long. If they share a tile, each
// computes half of its rows, and the second one starts late, so that one still multiplies while the other stores.
//
// Blocks compute whole tiles in rounds. The columns after the last whole tile are tail tiles, narrow and sometimes
// tall: the blocks without a whole tile in the last round compute them.
//
// Blocks can share the loads of B in clusters. That pays only if rows of the operands are not whole lines of L2.
//
// Bottleneck: power. Products alone, without copies, reach 930 TFLOP/s on an H200 at its limit of 700 W. With the
// copies to the ring, the same power allows a clock of only 1.5 GHz of 1.98.
#include "../common/dependent.cuh"
#include "persistent_tile.cuh"
#include "warpgroup_store.cuh"

// The tiles of a cluster, in the order of their computation: every stride-th of the whole ones, then tail tiles, which
// those clusters share that have fewer whole ones. m0: of the cluster's first block.
template <class SHAPE>
struct Tiles {
    static constexpr int kRows = SHAPE::kShares * SHAPE::kM, kTailRows = kRows * SHAPE::kTall;
    int down, across, tails_down;          // tiles of a batch
    int first, stride;                     // this cluster, all of them
    int whole, tail0, tail_stride, count;  // this cluster's: whole tiles, tail tiles, all

    __device__ __forceinline__ Tiles(int64 m, int64 n, int64 batches) {
        down = (m + kRows - 1) / kRows;
        across = SHAPE::kTail ? n / SHAPE::kN : (n + SHAPE::kN - 1) / SHAPE::kN;
        first = blockIdx.x / SHAPE::kShares, stride = gridDim.x / SHAPE::kShares;
        const int all = down * across * batches;
        whole = first < all ? (all - first + stride - 1) / stride : 0;
        count = whole;
        if (SHAPE::kTail) {
            tails_down = (m + kTailRows - 1) / kTailRows;
            const int full = all % stride;  // clusters with a whole tile in the last round
            const int tails = tails_down * batches;
            tail0 = first - full, tail_stride = stride - full;
            if (tail0 >= 0 && tail0 < tails) count += (tails - tail0 + tail_stride - 1) / tail_stride;
        }
    }

    struct At {
        int m0, n0, batch;
    };

    __device__ __forceinline__ bool in_tail(int i) const { return SHAPE::kTail && i >= whole; }

    // The place of tile i of the cluster.
    __device__ __forceinline__ At operator[](int i) const {
        if (in_tail(i)) {
            const int number = tail0 + (i - whole) * tail_stride;
            return {number % tails_down * kTailRows, across * SHAPE::kN, number / tails_down};
        }
        const Place<kRows, SHAPE::kN, SHAPE::kBand> at(first + i * stride, down, across);
        return {at.m0, at.n0, at.batch};
    }
};

// The output, and the arrays of its epilogue. first: the epilogue of the first batch.
template <class R, class FINISH, class SHAPE, bool TENSOR_D, bool BY_COLUMNS>
struct Destination {
    const CUtensorMap* map;
    R* d;
    int64 d_row, d_col, d_batch, m, n;
    FINISH first;
    int64 c_batch, bias_batch, residual_batch;
    char* staging;  // the group's
    int group;
    bool leader;  // the thread issues the group's tensor stores

    // Stores the sums begin .. end - 1 of a tile, of 64 rows each; m0: row of the first sums. room: null, or ROOM bytes
    // of the ring, if no copy or product uses it any more. Then no store waits for the one before.
    template <int ROOM, int WIDE, int COUNT>
    __device__ __forceinline__ void store(
        const float (&sums)[WIDE][COUNT], int begin, int end, int m0, int n0, int batch, char* room) const {
        using Stored = Store<R, COUNT, BY_COLUMNS, FINISH, kStoreColumns<R, SHAPE::kN>>;
        FINISH finish = first;
        finish.c.first += batch * c_batch, finish.bias += batch * bias_batch;
        finish.residual.first += batch * residual_batch;
        constexpr int kMost = SHAPE::kTurns ? WIDE / 2 : WIDE;  // sums with room
        if (kMost * Stored::kRoom > ROOM) room = nullptr;
#pragma unroll
        for (int i = 0; i < WIDE; ++i) {
            if (i < begin || i >= end) continue;
            if constexpr (TENSOR_D) {
                Stored::template by_tensor<SHAPE::kBuffers, SHAPE::kBatch>(
                    room ? room + (i - begin) * Stored::kRoom : staging, sums[i], map, finish, m0 + i * 64, n0, batch,
                    m, n, 1 + group, leader, room != nullptr);
            } else {
                const Output<R> out{d + batch * d_batch, d_row, d_col, static_cast<int>(m), static_cast<int>(n)};
                Stored::template by_lanes<SHAPE::kBuffers>(staging, sums[i], out, finish, m0 + i * 64, n0);
            }
        }
    }
};

// A consumer.
template <class RING, class TO, class SHAPE, int BYTES>
struct Consumer {
    RING& ring;  // of BYTES bytes
    const Tiles<SHAPE>& tiles;
    const TO& to;
    int steps, rank, group;

    // Multiplies and stores its rows of tile i, of kind KIND. In turns, both consumers store a half of the last tile:
    // the other one, which has no more tile, calls it with i = tiles.count, and gets its sums through the ring's
    // memory.
    template <class KIND>
    __device__ __forceinline__ void compute(int i) {
        constexpr bool TURNS = SHAPE::kTurns;
        constexpr int WIDE = KIND::kWide, HALF = WIDE / 2, COUNT = KIND::kN / 2;
        constexpr int kPassed = TURNS ? HALF * COUNT * kGroup * 4 : 0;                         // bytes
        constexpr int kRoom = (BYTES - kPassed) / (TURNS ? 2 : SHAPE::kGroups) / 1024 * 1024;  // of each
        const bool helps = TURNS && i == tiles.count, last = i + 1 >= tiles.count;
        // Sums begin with zeros. If they began undefined, ptxas would keep registers for both kinds of tile.
        typename KIND::Sums sums = {};
        if (!helps) ring.multiply_tile(sums, steps, i == 0, last);
        if (TURNS && last) pass<HALF>(sums, helps);
        const auto at = tiles[helps ? i - 1 : i];
        const int m0 = at.m0 + rank * KIND::kM + (TURNS ? 0 : group * WIDE * 64);
        char* const room = last ? ring.stages + kPassed + (TURNS ? helps : group) * kRoom : nullptr;
        to.template store<kRoom>(
            sums, helps ? HALF : 0, TURNS && last && !helps ? HALF : WIDE, m0, at.n0, at.batch, room);
    }

  private:
    // Passes the sums from HALF on to the other consumer, which `helps`. One barrier orders the stores before the
    // loads; racecheck notes a barrier after some of the loads that follow it, and reports these unless there is
    // another one.
    template <int HALF, int WIDE, int COUNT>
    __device__ __forceinline__ void pass(float (&sums)[WIDE][COUNT], bool helps) {
        float* const mine = reinterpret_cast<float*>(ring.stages) + threadIdx.x % kGroup;
        if (helps) {
            named_sync(RING::kPassed, 2 * kGroup);
            named_sync(RING::kPassed + 1, 2 * kGroup);
        }
#pragma unroll
        for (int v = 0; v < (WIDE - HALF) * COUNT; ++v) {
            float& sum = sums[HALF + v / COUNT][v % COUNT];
            if (helps)
                sum = mine[v * kGroup];
            else
                mine[v * kGroup] = sum;
        }
        if (!helps) {
            named_arrive(RING::kPassed, 2 * kGroup);
            named_arrive(RING::kPassed + 1, 2 * kGroup);
        }
    }
};

// grid: a multiple of SHARES, cluster: SHARES, block: 128 per consumer and 128, shared: the ring, BUFFERS * 8192 bytes
// per consumer, 16 per stage
template <class T, class R, class U, class SHAPE, bool A_K, bool B_K, bool TENSOR_D, bool BY_COLUMNS, int ACTIVATION,
    int C, int BIAS, int RESIDUAL>
__global__ void __launch_bounds__(SHAPE::kThreads, 1) tiles(const __grid_constant__ CUtensorMap map_a,
    const __grid_constant__ CUtensorMap map_b, const __grid_constant__ CUtensorMap map_tail,
    const __grid_constant__ CUtensorMap map_d, const T* a, const T* b, const R* c, R* d, int64 a_row, int64 a_col,
    int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row, int64 c_col, int64 c_batch, int64 d_row,
    int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches, float alpha, float beta, const U* bias,
    int64 bias_row, int64 bias_col, int64 bias_batch, const R* residual, int64 residual_row, int64 residual_col,
    int64 residual_batch, float scale) {
    constexpr int STAGES = SHAPE::kStages, GROUPS = SHAPE::kGroups, SHARES = SHAPE::kShares;
    using Whole = Kind<T, SHAPE, A_K, B_K, false>;
    using Tail = Kind<T, SHAPE, A_K, B_K, (SHAPE::kTail > 0)>;
    constexpr int kStage = Whole::Load::kStage > Tail::Load::kStage ? Whole::Load::kStage : Tail::Load::kStage;
    constexpr int kStaging = SHAPE::kBuffers * 8192;  // of a consumer
    extern __shared__ __align__(1024) char shared[];
    char* const staging = shared + STAGES * kStage;
    uint64* const full = reinterpret_cast<uint64*>(staging + GROUPS * kStaging);
    uint64* const empty = full + STAGES;
    const int rank = SHARES > 1 ? cluster_rank() : 0;
    const int group = __shfl_sync(kAllLanes, threadIdx.x / kGroup, 0) - 1;  // -1: producer

    if (threadIdx.x == 0) {
        start_dependents();
        tensor_prefetch(&map_a);
        tensor_prefetch(&map_b);
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(&full[i], Whole::Load::kArrivals);
            barrier_init(&empty[i], SHARES * (SHAPE::kTurns ? 1 : GROUPS) * kGroup / kWarp);
        }
        fence_barrier_init();
    }
    const Tiles<SHAPE> tiles(m, n, batches);
    const int steps = (k + kDepth - 1) / kDepth;
    if constexpr (SHARES > 1)
        cluster_sync();
    else
        __syncthreads();
    wait_for_predecessor();

    Ring<T, SHAPE, A_K, B_K, kStage> ring{shared, full, empty, group};
    if (group < 0) {
        if constexpr (GROUPS == 2) registers_decrease<24>();
        if (threadIdx.x == 0) {
            for (int i = 0; i < tiles.count; ++i) {
                const auto at = tiles[i];
                const int batch_a = a_batch ? at.batch : 0, batch_b = b_batch ? at.batch : 0;
                if (tiles.in_tail(i))
                    ring.fill(typename Tail::Load(
                                  &map_a, &map_tail, {}, {}, at.m0 + rank * Tail::kM, at.n0, batch_a, batch_b, rank),
                        steps);
                else
                    ring.fill(typename Whole::Load(
                                  &map_a, &map_b, {}, {}, at.m0 + rank * Whole::kM, at.n0, batch_a, batch_b, rank),
                        steps);
            }
        }
    } else {
        if constexpr (GROUPS == 2) registers_increase<240>();
        using Finish = Epilogue<U, R, ACTIVATION, C, BIAS, RESIDUAL>;
        const bool leader = threadIdx.x % kGroup == 0;
        using To = Destination<R, Finish, SHAPE, TENSOR_D, BY_COLUMNS>;
        const To to{&map_d, d, d_row, d_col, d_batch, m, n,
            {c, c_row, c_col, bias, bias_row, bias_col, residual, residual_row, residual_col, alpha, beta, scale},
            c_batch, bias_batch, residual_batch, staging + group * kStaging, group, leader};
        ring.start(steps);
        Consumer<decltype(ring), To, SHAPE, STAGES * kStage> consumer{ring, tiles, to, steps, rank, group};
        const int calls = tiles.count + (SHAPE::kTurns ? 1 : 0);
        for (int i = SHAPE::kTurns ? group : 0; i < calls; i += SHAPE::kTurns ? GROUPS : 1) {
            if (tiles.in_tail(i < tiles.count ? i : i - 1))
                consumer.template compute<Tail>(i);
            else
                consumer.template compute<Whole>(i);
        }
        if (TENSOR_D && leader) bulk_wait_read<0>();  // shared memory must exist until it is read
    }
    if constexpr (SHARES > 1) cluster_sync();  // no block may exit while another one arrives at its barriers
}
