// Shared by 05_wgmma.cu to 11_stored.cu: the store of sums from registers, and the ring of stages of 07_producer.cu for
// the variants after it.
#pragma once
#include "../common/pack.cuh"
#include "warpgroup_tile.cuh"

// Stores a warpgroup's 64 x 2 * COUNT sums, multiplied by alpha, from registers. A lane has two neighbours of a row. d:
// the batch's first element; m0, n0: of the sums; n is even.
template <class R, int COUNT>
__device__ __forceinline__ void store_sums(
    R* d, int64 d_row, const float (&sums)[COUNT], int m0, int n0, int m, int n, float alpha) {
    const int lane = threadIdx.x % kWarp;
    const int row = threadIdx.x % kGroup / kWarp * 16 + lane / 4, col = lane % 4 * 2;
#pragma unroll
    for (int v = 0; v < COUNT; v += 2) {
        const int to_row = row + v / 2 % 2 * 8, to_col = col + v / 4 * 8;
        if (to_row >= m - m0 || to_col >= n - n0) continue;
        *reinterpret_cast<Pack<R, 2>*>(d + (m0 + to_row) * d_row + n0 + to_col) = {
            {static_cast<R>(alpha * sums[v]), static_cast<R>(alpha * sums[v + 1])}};
    }
}

// This warp's consumer, 0 or 1, or -1 in the producer warpgroup. The shuffle makes it uniform for the compiler: operand
// descriptors that depend on it are then in uniform registers, from which wgmma reads them.
__device__ __forceinline__ int consumer_number() {
    return __shfl_sync(kAllLanes, threadIdx.x / kGroup, 0) - 1;
}

// The ring of 07_producer.cu, or of 09_cluster.cu if SHARES, the blocks of a cluster that load B for each other, is 2.
// One producer thread fills its stages; two consumer warpgroups multiply half of the rows each.
template <class T, int BM, int BN, bool A_K, bool B_K, int STAGES, int SHARES = 1>
struct Ring {
    using A = OperandTile<T, BM, A_K>;
    using B = OperandTile<T, BN, B_K>;
    static constexpr int kStage = A::kBytes + B::kBytes, kWide = BM / 2 / 64;

    char* const stages;
    uint64 *const full, *const empty;
    const int rank;
    RingPlace<STAGES> place;

    // shared: STAGES * (kStage + 16) bytes, 1024-byte aligned. All threads of the cluster construct it together.
    __device__ __forceinline__ explicit Ring(char* shared)
        : stages(shared),
          full(reinterpret_cast<uint64*>(shared + STAGES * kStage)),
          empty(full + STAGES),
          rank(SHARES > 1 ? cluster_rank() : 0) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; ++i) {
                barrier_init(&full[i], 1);
                barrier_init(&empty[i], SHARES * 2 * kGroup / kWarp);
            }
            fence_barrier_init();
        }
        sync();
    }

    // Waits for all threads of the cluster: also before a block exits, to whose shared memory the others have access.
    __device__ __forceinline__ void sync() {
        if constexpr (SHARES > 1)
            cluster_sync();
        else
            __syncthreads();
    }

    // Loads all steps of a tile; called by one thread.
    __device__ __forceinline__ void fill(
        const CUtensorMap* map_a, const CUtensorMap* map_b, int m0, int n0, int batch_a, int batch_b, int steps) {
        for (int step = 0; step < steps; ++step) {
            char* const stage = stages + place.stage * kStage;
            uint64* const arrived = &full[place.stage];
            barrier_wait<(SHARES > 1)>(&empty[place.stage], place.parity ^ 1);
            barrier_arrive_expect(arrived, kStage);
            A::load(stage, map_a, m0, step * kDepth, batch_a, arrived);
            B::template load<SHARES>(stage + A::kBytes, map_b, n0, step * kDepth, batch_b, arrived, rank);
            place.next();
        }
    }

    // sums = the products of all steps of a tile, for rows from my_rows on; called by consumers.
    __device__ __forceinline__ void multiply_all(float (&sums)[kWide][BN / 2], int my_rows, int steps) {
        const int lane = threadIdx.x % kWarp;
        int reading = -1;  // the stage that the products in flight read
        for (int step = 0; step < steps; ++step) {
            barrier_wait(&full[place.stage], place.parity);
            const unsigned stage = shared_address(stages) + place.stage * kStage;
            multiply<T, A_K, B_K>(sums, stage + my_rows * kRowBytes, stage + A::kBytes, step > 0);
            wgmma_wait<1>();  // the products of the step before are complete
            if (reading >= 0) release<SHARES>(&empty[reading], lane);
            reading = place.stage;
            place.next();
        }
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < kWide; ++i) wgmma_result(sums[i]);
        release<SHARES>(&empty[reading], lane);
    }
};
