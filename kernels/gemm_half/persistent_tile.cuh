// Shared by 12_tiles.cu and gemm_grouped/02_tiles.cu: the shape of their tiles, and the ring of stages that a producer
// fills and consumers multiply.
#pragma once
#include "warpgroup_tile.cuh"

// BM x BN: a whole tile. TAIL: columns of a tail tile; 0: there are none, the last whole tiles are padded. TALL: rows
// of a tail tile, in BM; 2 if it would else load more than the tensor cores multiply meanwhile. GROUPS: consumers.
// SHARES: blocks of a cluster; their tiles are one above the other, and each loads a part of B for all. BUFFERS, BATCH:
// of a consumer's store. BAND: rows of clusters' tiles that concurrent blocks cover.
template <int BM, int BN, int TAIL, int TALL, int GROUPS, bool TURNS, int STAGES, int SHARES, int BUFFERS, int BATCH,
    int BAND>
struct Shape {
    static constexpr int kM = BM, kN = BN, kTail = TAIL, kTall = TALL, kGroups = GROUPS, kStages = STAGES;
    static constexpr int kShares = SHARES, kBuffers = BUFFERS, kBatch = BATCH, kBand = BAND;
    static constexpr bool kTurns = TURNS;
    static constexpr int kThreads = (GROUPS + 1) * kGroup;
    static constexpr bool kLate = GROUPS == 2 && !TURNS;  // the second consumer starts late
    static_assert(GROUPS <= 2 && (GROUPS == 2 || !TURNS) && BM % (64 * (TURNS ? 1 : GROUPS)) == 0, "whole products");
    static_assert(TALL * TAIL <= BN, "the sums of a tail tile need no more registers");
};

// A kind of tile: whole, or TAIL.
template <class T, class SHAPE, bool A_K, bool B_K, bool TAIL>
struct Kind {
    static constexpr int kM = SHAPE::kM * (TAIL ? SHAPE::kTall : 1), kN = TAIL ? SHAPE::kTail : SHAPE::kN;
    static constexpr int kWide = kM / 64 / (SHAPE::kTurns ? 1 : SHAPE::kGroups);  // products of 64 rows of a consumer
    using Load = Loader<T, kM, kN, A_K, B_K, true, true, SHAPE::kShares, SHAPE::kM>;
    using Sums = float[kWide][kN / 2];
};

// The ring, in the order in which a warpgroup passes its stages. STAGE: bytes.
template <class T, class SHAPE, bool A_K, bool B_K, int STAGE>
struct Ring {
    // Named barriers: 1 + group for a group's store; this one and the next one to start in turns, or late; then two
    // for sums that a group passes to the other one.
    static constexpr int kStart = 1 + SHAPE::kGroups, kPassed = kStart + 2;

    char* stages;
    uint64 *full, *empty;
    int group;
    RingPlace<SHAPE::kStages> place;

    // Loads a tile. The producer calls it.
    template <class LOAD>
    __device__ __forceinline__ void fill(const LOAD& load, int steps) {
        for (int step = 0; step < steps; ++step) {
            barrier_wait<(SHAPE::kShares > 1)>(&empty[place.stage], place.parity ^ 1);
            load(stages + place.stage * STAGE, step * kDepth, &full[place.stage]);
            place.next();
        }
    }

    // Consumers, before the first tile. In turns a group must not wait for a stage two phases ahead, whose parity is
    // that of the last phase. So the second one waits in multiply_tile until the first one has waited for all its
    // stages.
    __device__ __forceinline__ void start(int steps) {
        if (SHAPE::kTurns && group) {
            place.skip(steps);
            named_arrive(kStart, 2 * kGroup);
        }
        if (SHAPE::kLate && group) named_sync(kStart, 2 * kGroup);
    }

    // Consumer: multiplies its rows of a tile of 2 * COUNT columns. first: it is the block's first one; last: no other
    // one follows.
    template <int WIDE, int COUNT>
    __device__ __forceinline__ void multiply_tile(float (&sums)[WIDE][COUNT], int steps, bool first, bool last) {
        constexpr int kA = OperandTile<T, WIDE * 64 * (SHAPE::kTurns ? 1 : SHAPE::kGroups), A_K>::kBytes;
        const int lane = threadIdx.x % kWarp, my_rows = SHAPE::kTurns ? 0 : group * WIDE * 64;
        const unsigned ring = shared_address(stages);
        int reading = -1;  // the stage that the products in flight read
        if (SHAPE::kTurns) named_sync(kStart + group, 2 * kGroup);
        for (int step = 0; step < steps; ++step) {
            barrier_wait(&full[place.stage], place.parity);
            const unsigned stage = ring + place.stage * STAGE;
            multiply<T, A_K, B_K>(sums, stage + my_rows * kRowBytes, stage + kA, true);
            if (SHAPE::kLate && group == 0 && step == 0 && first) named_arrive(kStart, 2 * kGroup);
            wgmma_wait<1>();  // the products of the step before are complete
            if (reading >= 0) release<SHAPE::kShares>(&empty[reading], lane);
            reading = place.stage;
            place.next();
        }
        if (SHAPE::kTurns && !last) named_arrive(kStart + 1 - group, 2 * kGroup);
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < WIDE; ++i) wgmma_result(sums[i]);
        release<SHAPE::kShares>(&empty[reading], lane);
        if (last) {  // stores use the ring: no product of any consumer still reads it
            for (int i = 0; i < SHAPE::kStages; ++i) {
                barrier_wait<(SHAPE::kShares > 1)>(&empty[place.stage], place.parity ^ 1);
                place.next();
            }
        } else if (SHAPE::kTurns) {
            place.skip(steps);
        }
    }
};
