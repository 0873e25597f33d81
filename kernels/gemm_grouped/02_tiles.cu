// Products of many groups of rows with a matrix per group, in one launch, by wgmma: out of one list of tiles, which the
// device makes from the groups' sizes, persistent blocks compute their share as in gemm_half/12_tiles.cu.
//
// Parameters: tensor maps of A, of B for whole tiles, of B for tail tiles and of D, with boxes as in
// gemm_half/12_tiles.cu. Without tail tiles, the third map is not used; without TENSOR_D, the fourth. `sizes`, `step`:
// see Groups, with `step` elements between two sizes; a_each, b_each, d_each: 1 if a group has its own batch of the
// tensor map, 0 if all groups share one; D and its strides; the rows of A (masked: of a group), n, k and alpha; the
// bias per group and column. k is at least 1.
//
// The columns after a group's last whole tile are tail tiles. They follow the group's whole ones, which had the same
// rows of A; a tall one takes about as long as a whole one.
//
// A group's last tile may load rows of the next group. Their products are not stored: 64 rows that are all the group's
// are stored by a tensor store, others by lanes.
//
// Bottleneck: as in gemm_half/12_tiles.cu. A group with few rows fills a part of a tile; then it is the memory
// bandwidth of B.
#include "../common/dependent.cuh"
#include "../gemm_half/persistent_tile.cuh"
#include "../gemm_half/warpgroup_store.cuh"
#include "groups.cuh"

// The place of a tile: rows m0 .. end - 1 belong to its group. across: whole tiles per row of them.
template <class SHAPE>
struct GroupTile {
    int group, m0, n0, end;
    bool in_tail;

    __device__ __forceinline__ GroupTile(const Groups& groups, int tile, int across) : group(groups.of(tile)) {
        const int first = groups.first(group), down = (groups.end(group) - first + SHAPE::kM - 1) / SHAPE::kM;
        const int number = tile - groups.tiles[group];
        end = groups.end(group);
        in_tail = SHAPE::kTail && number >= down * across;
        if (in_tail) {
            m0 = first + (number - down * across) * SHAPE::kM * SHAPE::kTall;
            n0 = across * SHAPE::kN;
            return;
        }
        // As in Place, but bands have nearly the same height, of about BAND rows of tiles: each band reads all of B.
        const int bands = max(1, (2 * down + SHAPE::kBand) / (2 * SHAPE::kBand)), height = (down + bands - 1) / bands;
        const int band = number / (height * across), in_band = number - band * height * across;
        const int rows = min(height, down - band * height), col = in_band / rows;
        m0 = first + (band * height + in_band % rows) * SHAPE::kM;
        n0 = (band % 2 ? across - 1 - col : col) * SHAPE::kN;
    }
};

// The output, and its epilogue. first: the epilogue of group 0.
template <class R, class FINISH, class SHAPE, bool TENSOR_D, int ROOM>
struct GroupedOutput {
    const CUtensorMap* map;
    R* d;
    int64 d_row, d_col, d_batch;
    int d_each, n;
    FINISH first;
    int64 bias_batch;

    // Stores a consumer's sums of a tile, which begin at row m0. Parameters as of Destination in
    // gemm_half/12_tiles.cu.
    template <int WIDE, int COUNT>
    __device__ __forceinline__ void store(const float (&sums)[WIDE][COUNT], const GroupTile<SHAPE>& at, int m0,
        char* staging, int consumer, bool leader, char* room) const {
        using Stored = Store<R, COUNT, false, FINISH, kStoreColumns<R, SHAPE::kN>>;
        if (WIDE * Stored::kRoom > ROOM) room = nullptr;
        // Tensor stores need a column stride of 1; the constant saves registers.
        const Output<R> out{d + at.group * d_batch, d_row, TENSOR_D ? 1 : d_col, at.end, n};
        FINISH finish = first;
        finish.bias += at.group * bias_batch;
#pragma unroll
        for (int i = 0; i < WIDE; ++i) {
            const int row = m0 + i * 64;
            if (TENSOR_D && row + 64 <= at.end) {
                Stored::template by_tensor<SHAPE::kBuffers, SHAPE::kBatch>(room ? room + i * Stored::kRoom : staging,
                    sums[i], map, finish, row, at.n0, at.group * d_each, at.end, n, 1 + consumer, leader,
                    room != nullptr);
            } else if (row < at.end) {
                if constexpr (TENSOR_D) {  // before lanes overwrite the buffers
                    if (leader) bulk_wait_read<0>();
                    named_sync(1 + consumer, kGroup);
                }
                Stored::template by_lanes<SHAPE::kBuffers>(staging, sums[i], out, finish, row, at.n0);
            }
        }
    }
};

// grid: any, block: 384, shared: the ring, BUFFERS * 8192 bytes per consumer, 16 per stage, and the lists of Groups
template <class T, class R, class U, class SHAPE, bool B_K, bool TENSOR_D, int ACTIVATION, int BIAS>
__global__ void __launch_bounds__(SHAPE::kThreads, 1) grouped(const __grid_constant__ CUtensorMap map_a,
    const __grid_constant__ CUtensorMap map_b, const __grid_constant__ CUtensorMap map_tail,
    const __grid_constant__ CUtensorMap map_d, const int* sizes, int64 step, int count, bool masked, int a_each,
    int b_each, int d_each, R* d, int64 d_row, int64 d_col, int64 d_batch, int rows, int n, int k, float alpha,
    const U* bias, int64 bias_col, int64 bias_batch) {
    constexpr int STAGES = SHAPE::kStages, GROUPS = SHAPE::kGroups;
    using Whole = Kind<T, SHAPE, true, B_K, false>;
    using Tail = Kind<T, SHAPE, true, B_K, (SHAPE::kTail > 0)>;
    using At = GroupTile<SHAPE>;
    constexpr int kStage = Whole::Load::kStage > Tail::Load::kStage ? Whole::Load::kStage : Tail::Load::kStage;
    constexpr int kStaging = SHAPE::kBuffers * 8192;                                     // of a consumer
    constexpr int kRoom = STAGES * kStage / (SHAPE::kTurns ? 1 : GROUPS) / 1024 * 1024;  // for the last tile
    static_assert(GROUPS == 2 && SHAPE::kShares == 1, "two consumers, no clusters");
    extern __shared__ __align__(1024) char shared[];
    char* const staging = shared + STAGES * kStage;
    uint64* const full = reinterpret_cast<uint64*>(staging + GROUPS * kStaging);
    uint64* const empty = full + STAGES;
    const Groups groups(reinterpret_cast<char*>(empty + STAGES), count, masked);
    const int consumer = __shfl_sync(kAllLanes, threadIdx.x / kGroup, 0) - 1;  // -1: producer

    if (threadIdx.x == 0) {
        start_dependents();
        tensor_prefetch(&map_a);
        tensor_prefetch(&map_b);
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(&full[i], Whole::Load::kArrivals);
            barrier_init(&empty[i], (SHAPE::kTurns ? 1 : GROUPS) * kGroup / kWarp);
        }
        fence_barrier_init();
    }
    wait_for_predecessor();
    const int across = SHAPE::kTail ? n / SHAPE::kN : (n + SHAPE::kN - 1) / SHAPE::kN;
    if (threadIdx.x < kWarp)
        groups.list<SHAPE::kM, (SHAPE::kTail ? SHAPE::kTall * SHAPE::kM : 0)>(sizes, step, rows, across);
    __syncthreads();

    // The shuffle makes it uniform for the compiler: operand descriptors in the loop over tiles are then in uniform
    // registers, from which wgmma reads them.
    const int all = __shfl_sync(kAllLanes, groups.all(), 0);
    const int steps = (k + kDepth - 1) / kDepth;
    Ring<T, SHAPE, true, B_K, kStage> ring{shared, full, empty, consumer};
    if (consumer < 0) {
        registers_decrease<24>();
        if (threadIdx.x == 0) {
            for (int tile = blockIdx.x; tile < all; tile += gridDim.x) {
                const At at(groups, tile, across);
                const int batch_a = at.group * a_each, batch_b = at.group * b_each;
                if (at.in_tail)
                    ring.fill(typename Tail::Load(&map_a, &map_tail, {}, {}, at.m0, at.n0, batch_a, batch_b), steps);
                else
                    ring.fill(typename Whole::Load(&map_a, &map_b, {}, {}, at.m0, at.n0, batch_a, batch_b), steps);
            }
        }
    } else {
        registers_increase<240>();
        using Finish = Epilogue<U, R, ACTIVATION, kNoArray, BIAS, kNoArray>;
        const bool leader = threadIdx.x % kGroup == 0;
        char* const mine = staging + consumer * kStaging;
        const GroupedOutput<R, Finish, SHAPE, TENSOR_D, kRoom> to{&map_d, d, d_row, d_col, d_batch, d_each, n,
            {nullptr, 0, 0, bias, 0, bias_col, nullptr, 0, 0, alpha, 0.0f, 1.0f}, bias_batch};
        const int each = SHAPE::kTurns ? GROUPS : 1, share = SHAPE::kTurns ? 0 : consumer;
        const int begin = blockIdx.x + (SHAPE::kTurns ? consumer * gridDim.x : 0);
        if (blockIdx.x < all) ring.start(steps);
        for (int tile = begin; tile < all; tile += each * gridDim.x) {
            const bool first = tile == blockIdx.x, last = tile + static_cast<int>(gridDim.x) >= all;
            char* const room = last ? shared + share * kRoom : nullptr;
            const At at(groups, tile, across);
            // Sums begin with zeros, as in gemm_half/12_tiles.cu
            if (at.in_tail) {
                typename Tail::Sums sums = {};
                ring.multiply_tile(sums, steps, first, last);
                to.store(sums, at, at.m0 + share * Tail::kWide * 64, mine, consumer, leader, room);
            } else {
                typename Whole::Sums sums = {};
                ring.multiply_tile(sums, steps, first, last);
                to.store(sums, at, at.m0 + share * Whole::kWide * 64, mine, consumer, leader, room);
            }
        }
        if (TENSOR_D && leader) bulk_wait_read<0>();  // shared memory must exist until it is read
    }
}
