// Products of many groups of rows with a matrix per group, in one launch, by wgmma: out of one list of tiles, which the
// device makes from the groups' sizes, persistent blocks compute their share as in gemm_half/12_tiles.cu.
//
// Parameters: tensor maps of A, B and D (not used unless TENSOR_D), with boxes as in gemm_half/12_tiles.cu; `sizes`,
// `step`: see Groups, with `step` elements between two sizes; D and its strides; the rows of A (masked: of a group), n,
// k and alpha; the bias per group and column. a_each, b_each, d_each: 1 if a group has its own batch of the tensor map,
// 0 if all groups share one. `vector`: see Output. k is at least 1. Dynamic shared memory: the ring, the buffers of the
// stores, the ring's barriers, and the lists of Groups.
//
// A group's last tile may load rows of the next group. Their products are not stored: 64 rows that are all the group's
// are stored by a tensor store, others by lanes.
//
// Bottleneck: as in gemm_half/12_tiles.cu. A group with few rows fills a part of a tile; then it is the memory
// bandwidth of B.
#include "../common/dependent.cuh"
#include "../gemm_half/warpgroup_tile.cuh"
#include "groups.cuh"

// A tile is BM x BN. BUFFERS, BATCH: of a consumer's store. BAND: rows of tiles that concurrent blocks cover.
template <int BN, int STAGES, int BUFFERS, int BATCH, int BAND>
struct Shape {
    static constexpr int kM = 128, kN = BN, kStages = STAGES, kBuffers = BUFFERS, kBatch = BATCH, kBand = BAND;
    static constexpr int kWide = kM / 64;  // products of 64 rows
};

// The place of a tile: rows m0 .. end - 1 belong to its group.
template <class SHAPE>
struct GroupTile {
    int group, m0, n0, end;

    __device__ __forceinline__ GroupTile(const Groups& groups, int tile, int across) : group(groups.of(tile)) {
        const int first = groups.first(group);
        end = groups.end(group);
        const int down = (end - first + SHAPE::kM - 1) / SHAPE::kM;
        const Place<SHAPE::kM, SHAPE::kN, SHAPE::kBand> at(tile - groups.tiles[group], down, across);
        m0 = first + at.m0, n0 = at.n0;
    }
};

// grid: any, block: 384
template <class T, class R, class U, class SHAPE, bool B_K, bool TENSOR_D, int ACTIVATION, int BIAS>
__global__ void __launch_bounds__(3 * kGroup, 1) grouped(const __grid_constant__ CUtensorMap map_a,
    const __grid_constant__ CUtensorMap map_b, const __grid_constant__ CUtensorMap map_d, const int* sizes, int64 step,
    int count, bool masked, int a_each, int b_each, int d_each, R* d, int64 d_row, int64 d_col, int64 d_batch, int rows,
    int n, int k, float alpha, const U* bias, int64 bias_col, int64 bias_batch, int vector) {
    constexpr int STAGES = SHAPE::kStages;
    using Finish = Epilogue<U, R, ACTIVATION, false, BIAS, false>;
    using Stored = Store<R, SHAPE::kN / 2, false, Finish>;
    using Load = Loader<T, SHAPE::kM, SHAPE::kN, true, B_K, true, true>;
    using At = GroupTile<SHAPE>;
    constexpr int kStaging = SHAPE::kBuffers * 8192;  // of a consumer
    extern __shared__ __align__(1024) char shared[];
    char* const staging = shared + STAGES * Load::kStage;
    uint64* const full = reinterpret_cast<uint64*>(staging + 2 * kStaging);
    uint64* const empty = full + STAGES;
    const Groups groups(reinterpret_cast<char*>(empty + STAGES), count, masked);
    const int warpgroup = __shfl_sync(kAllLanes, threadIdx.x / kGroup, 0) - 1;  // -1: producer

    if (threadIdx.x == 0) start_dependents();
    wait_for_predecessor();
    const int across = (n + SHAPE::kN - 1) / SHAPE::kN;
    if (threadIdx.x < kWarp) groups.list<SHAPE::kM>(sizes, step, rows, across);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(&full[i], Load::kArrivals);
            barrier_init(&empty[i], kGroup / kWarp);
        }
        fence_barrier_init();
    }
    __syncthreads();

    const int all = groups.all();
    const int steps = (k + kDepth - 1) / kDepth;
    RingPlace<STAGES> place;
    if (warpgroup < 0) {
        registers_decrease<40>();
        if (threadIdx.x == 0) {
            for (int tile = blockIdx.x; tile < all; tile += gridDim.x) {
                const At at(groups, tile, across);
                const Load load(
                    &map_a, &map_b, Source<T>{}, Source<T>{}, at.m0, at.n0, at.group * a_each, at.group * b_each);
                for (int s = 0; s < steps; ++s) {
                    barrier_wait(&empty[place.stage], place.parity ^ 1);
                    load(shared + place.stage * Load::kStage, s * kDepth, &full[place.stage]);
                    place.next();
                }
            }
        }
    } else {
        registers_increase<232>();
        const int lane = threadIdx.x % kWarp;
        const bool leader = threadIdx.x % kGroup == 0;  // issues the group's tensor stores
        const unsigned ring = shared_address(shared);
        char* const mine = staging + warpgroup * kStaging;
        const int stride = 2 * gridDim.x;
        // Named barriers as in gemm_half/12_tiles.cu: warpgroup + 1 for its store, this one and the next one to start
        // in turns
        constexpr int kStart = 3;
        if (warpgroup && blockIdx.x < all) {
            place.skip(steps);
            named_arrive(kStart, 2 * kGroup);
        }
        for (int tile = blockIdx.x + warpgroup * gridDim.x; tile < all; tile += stride) {
            float sums[SHAPE::kWide][SHAPE::kN / 2];
            int reading = -1;  // the stage that the products in flight read
            named_sync(kStart + warpgroup, 2 * kGroup);
            for (int s = 0; s < steps; ++s) {
                barrier_wait(&full[place.stage], place.parity);
                const unsigned stage = ring + place.stage * Load::kStage;
                multiply<T, true, B_K>(sums, stage, stage + Load::A::kBytes, s > 0);
                wgmma_wait<1>();  // the products of the step before are complete
                if (reading >= 0 && lane == 0) barrier_arrive(&empty[reading]);
                reading = place.stage;
                place.next();
            }
            if (tile + static_cast<int>(gridDim.x) < all) named_arrive(kStart + 1 - warpgroup, 2 * kGroup);
            wgmma_wait<0>();
#pragma unroll
            for (int i = 0; i < SHAPE::kWide; ++i) wgmma_result(sums[i]);
            if (lane == 0) barrier_arrive(&empty[reading]);
            place.skip(steps);

            const At at(groups, tile, across);
            const Finish finish{
                nullptr, 0, 0, bias + at.group * bias_batch, 0, bias_col, nullptr, 0, 0, alpha, 0.0f, 1.0f};
            const Output<R> out{d + at.group * d_batch, d_row, d_col, at.end, n, vector != 0};
#pragma unroll
            for (int i = 0; i < SHAPE::kWide; ++i) {
                const int m0 = at.m0 + i * 64;
                if (m0 >= at.end) continue;
                if (TENSOR_D && m0 + 64 <= at.end) {
                    Stored::template by_tensor<SHAPE::kBuffers, SHAPE::kBatch>(
                        mine, sums[i], &map_d, finish, m0, at.n0, at.group * d_each, at.end, n, 1 + warpgroup, leader);
                } else {
                    if constexpr (TENSOR_D) {  // before lanes overwrite the buffers
                        if (leader) bulk_wait_read<0>();
                        named_sync(1 + warpgroup, kGroup);
                    }
                    Stored::template by_lanes<SHAPE::kBuffers>(mine, sums[i], out, finish, m0, at.n0);
                }
            }
        }
        if (TENSOR_D && leader) bulk_wait_read<0>();  // shared memory must exist until it is read
    }
}
