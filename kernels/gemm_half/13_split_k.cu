// Product of half or bfloat16 matrices by wgmma for few tiles: the blocks of a cluster share a tile's k.
//
// Parameters as in 12_tiles.cu, then `parts`, the scratch memory of partial sums, and `splits`, the parts of a tile,
// one per block. k is at least 64 * (pieces of k - 1) + 1. `partial_a`, `partial_b`: second maps of operands of super
// rows, as in warpgroup_tile.cuh.
//
// Improvement: a product of 128 x 128 outputs is a single tile, however long k is. Here each block of a cluster
// multiplies a piece of the tile's k and leaves its sums in shared memory; then each adds up a part of the tile, and
// reads the other blocks' sums through distributed shared memory. If a cluster of 8 is not enough, blocks write their
// sums from registers to scratch memory as they are, and split_k_join adds them up. The order of all sums is fixed.
//
// A product with few rows is passed as its transpose: the larger matrix has the 64 rows of a wgmma, the smaller one its
// columns, as few as 16. Tiles of 64 or 128 rows are small, so copies have a deep ring instead of a second tile.
//
// Rows of any length that adjoin are copied to raw memory several steps ahead, by tensor copies of every 8th row, and
// shifted from there to the ring. If a block has one step, its threads load them directly.
//
// Bottleneck: memory bandwidth, if the product has few rows; else the latency of the first copies and of the last sums.
#include "../common/dependent.cuh"
#include "warpgroup_store.cuh"

// The tensor cores truncate each sum, so the error of a sum grows faster than its terms. Chains of so many steps are
// added up in float, unless the rounding of the output, to bfloat16, is larger than such errors.
constexpr int kChain = 64;
template <class R>
constexpr bool kInChains = true;
template <>
constexpr bool kInChains<__nv_bfloat16> = false;

// GROUPS * 64 x BN: a tile. CLUSTER: blocks that share its k.
template <int GROUPS, int BN, int STAGES, int CLUSTER>
struct Shape {
    static constexpr int kM = GROUPS * 64, kN = BN, kGroups = GROUPS, kStages = STAGES, kCluster = CLUSTER;
    static constexpr int kThreads = (GROUPS + 1) * kGroup;
    static constexpr int kFours = kM * kN / 4;                            // groups of four sums
    static constexpr int kAhead = STAGES == 1 ? 0 : STAGES == 2 ? 2 : 3;  // steps copied ahead to raw memory
    static constexpr int kBuffers = BN > 64 ? 2 : 1;  // 8 KB each, of a consumer that stores its sums directly
    static constexpr int kDirectBytes = GROUPS * kBuffers * 8192;
};

// A tile's sums in shared memory, from which the blocks of a cluster add them. The contiguous axis of the output is
// contiguous here, too.
template <class SHAPE, bool BY_COLUMNS>
struct Sums {
    static constexpr int kAlong = BY_COLUMNS ? SHAPE::kM : SHAPE::kN;
    static constexpr int kPitch = kAlong + (BY_COLUMNS ? 4 : 8);  // floats; padding against bank conflicts
    static constexpr int kBytes = SHAPE::kM * SHAPE::kN / kAlong * kPitch * 4;

    static __device__ __forceinline__ void store(float* to, const float (&sums)[SHAPE::kN / 2]) {
        const int lane = threadIdx.x % kWarp, row = (threadIdx.x - kGroup) / kWarp * 16 + lane / 4;
#pragma unroll
        for (int v = 0; v < SHAPE::kN / 2; v += 2) {
            const int my_row = row + v / 2 % 2 * 8, col = v / 4 * 8 + lane % 4 * 2;
            if constexpr (BY_COLUMNS) {
                to[col * kPitch + my_row] = sums[v];
                to[(col + 1) * kPitch + my_row] = sums[v + 1];
            } else {
                *reinterpret_cast<float2*>(to + my_row * kPitch + col) = make_float2(sums[v], sums[v + 1]);
            }
        }
    }
};

// Adds sums to a total, after all products are complete.
template <int COUNT>
__device__ __forceinline__ void add_chain(float (&total)[COUNT], float (&sums)[COUNT]) {
    wgmma_wait<0>();
    wgmma_result(sums);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) total[i] += sums[i];
}

__device__ __forceinline__ void add(float4& total, float4 more) {
    total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
}

// An element of the output, before it is rounded, from its sum. For one outside the output nothing outside the arrays
// is read.
template <class R, class FINISH>
__device__ __forceinline__ float finished(float sum, int row, int col, const Output<R>& out, const FINISH& finish) {
    return finish.of(sum, finish.added(row, col, row < out.m, col < out.n));
}

// Partial sums of tiles in scratch memory. Four consecutive sums of a thread are one float4, those of a warpgroup's
// threads adjoin.
template <class SHAPE>
struct Parts {
    static constexpr int kOfGroup = SHAPE::kFours / SHAPE::kGroups;

    // The place of four sums in a tile.
    struct Four {
        int row, col;  // of the first two; the other two are 8 rows below

        __device__ __forceinline__ explicit Four(int number) {
            const int thread = number % kGroup, lane = thread % kWarp;
            row = number / kOfGroup * 64 + thread / kWarp * 16 + lane / 4;
            col = number % kOfGroup / kGroup * 8 + lane % 4 * 2;
        }
    };

    // Stores the calling warpgroup's sums of a tile. first: the tile's part.
    static __device__ __forceinline__ void store(float4* first, int group, const float (&sums)[SHAPE::kN / 2]) {
        float4* const to = first + group * kOfGroup + threadIdx.x % kGroup;
#pragma unroll
        for (int v = 0; v < SHAPE::kN / 2; v += 4)
            to[v / 4 * kGroup] = make_float4(sums[v], sums[v + 1], sums[v + 2], sums[v + 3]);
    }
};

// Adds up the sums of a cluster's blocks, which are in shared memory, and stores the results. Each block adds and
// stores a share of the lines, a warp kLines of them at a time: each lane four sums of kBatch lines. The block calls
// it.
template <class SHAPE, bool BY_COLUMNS, class R, class FINISH>
__device__ __forceinline__ void store_shared_sums(
    float* sums, int rank, int m0, int n0, const Output<R>& out, const FINISH& finish) {
    using Tile = Sums<SHAPE, BY_COLUMNS>;
    constexpr int CLUSTER = SHAPE::kCluster;
    constexpr int kLanes = Tile::kAlong / 4, kOnce = kWarp / kLanes, kWarps = SHAPE::kThreads / kWarp;
    constexpr int kShare = SHAPE::kFours / kLanes / CLUSTER, kEach = kShare / kWarps / kOnce;
    constexpr int kBatch = kEach < 1 ? 1 : kEach < 4 ? kEach : 4, kLines = kOnce * kBatch;
    static_assert(SHAPE::kFours % (kLanes * CLUSTER) == 0, "equal shares");
    const int lane = threadIdx.x % kWarp, along = lane % kLanes * 4;
    const auto row = [&](int line, int i) { return m0 + (BY_COLUMNS ? i : line); };
    const auto col = [&](int line, int i) { return n0 + (BY_COLUMNS ? line : i); };
    for (int first = threadIdx.x / kWarp * kLines; first < kShare; first += kWarps * kLines) {
        float* const from = sums + (rank * kShare + first) * Tile::kPitch;
        const auto number = [&](int i) { return i * kOnce + lane / kLanes; };  // among the warp's lines
        const auto mine = [&](int i) { return lane < kOnce * kLanes && first + number(i) < kShare; };
        float4 results[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            if (!mine(i)) continue;
            const float4* const four = reinterpret_cast<const float4*>(from + number(i) * Tile::kPitch + along);
            const int line = rank * kShare + first + number(i);
            float4 total = CLUSTER > 1 ? cluster_load(four, 0) : *four;
#pragma unroll
            for (int other = 1; other < CLUSTER; ++other) add(total, cluster_load(four, other));
            const auto at = [&](float sum, int e) {
                return finished(sum, row(line, along + e), col(line, along + e), out, finish);
            };
            results[i] = make_float4(at(total.x, 0), at(total.y, 1), at(total.z, 2), at(total.w, 3));
        }
        // The results overwrite the sums of their lines.
        const int line = rank * kShare + first;
        const StagedLines<R, Tile::kAlong> staged{reinterpret_cast<char*>(from), Tile::kPitch * 4,
            &out.at(row(line, 0), col(line, 0)), BY_COLUMNS ? out.col : out.row, BY_COLUMNS ? out.row : out.col};
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            if (!mine(i)) continue;
            R* const to = staged[number(i)] + along;
            to[0] = static_cast<R>(results[i].x);
            to[1] = static_cast<R>(results[i].y);
            to[2] = static_cast<R>(results[i].z);
            to[3] = static_cast<R>(results[i].w);
        }
        __syncwarp();
        staged.template store<kLines>(
            min(min(kLines, kShare - first), BY_COLUMNS ? out.n - col(line, 0) : out.m - row(line, 0)),
            min(Tile::kAlong, BY_COLUMNS ? out.m - m0 : out.n - n0));
    }
}

// grid: tiles * splits * CLUSTER, cluster: CLUSTER, block: 128 per 64 rows and 128,
// shared: the ring and raw memory of kAhead steps, or what the sums need, if that is more: nothing if SPLIT,
// kDirectBytes, or Sums; then 16 bytes per stage, and 8 per such step
template <class T, class R, class U, class SHAPE, bool A_K, bool B_K, bool TENSOR_A, bool TENSOR_B, bool BY_COLUMNS,
    bool SPLIT, int ACTIVATION, int C, int BIAS, int RESIDUAL>
__global__ void __launch_bounds__(SHAPE::kThreads, 1) split_k(const __grid_constant__ CUtensorMap map_a,
    const __grid_constant__ CUtensorMap map_b, const __grid_constant__ CUtensorMap partial_a,
    const __grid_constant__ CUtensorMap partial_b, const T* a, const T* b, const R* c, R* d, int64 a_row, int64 a_col,
    int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row, int64 c_col, int64 c_batch, int64 d_row,
    int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches, float alpha, float beta, const U* bias,
    int64 bias_row, int64 bias_col, int64 bias_batch, const R* residual, int64 residual_row, int64 residual_col,
    int64 residual_batch, float scale, float* parts, int splits) {
    constexpr int STAGES = SHAPE::kStages, CLUSTER = SHAPE::kCluster;
    // A block with one step multiplies only after all rows have been loaded, so two warpgroups load them.
    constexpr bool kOneStep = STAGES == 1;
    constexpr int kGathering = (kOneStep ? 2 : 1) * kGroup;
    using Load = Loader<T, SHAPE::kM, SHAPE::kN, A_K, B_K, TENSOR_A, TENSOR_B, 1, SHAPE::kM, kGathering>;
    using Tile = Sums<SHAPE, BY_COLUMNS>;
    constexpr bool kDirect = CLUSTER == 1 && !SPLIT && !BY_COLUMNS;  // the consumers store the sums of their rows
    constexpr int kAhead = SHAPE::kAhead, kRing = STAGES * Load::kStage, kLoaded = kRing + kAhead * Load::kRaw;
    constexpr int kStored = SPLIT ? 0 : kDirect ? SHAPE::kDirectBytes : Tile::kBytes;
    constexpr bool kChains = kInChains<R>;
    extern __shared__ __align__(1024) char shared[];
    char* const raw = shared + kRing;
    uint64* const full = reinterpret_cast<uint64*>(shared + (kLoaded > kStored ? kLoaded : kStored));
    uint64* const empty = full + STAGES;
    uint64* const arrived = empty + STAGES;  // of raw memory
    static_assert(kRing % 128 == 0 && kStored % 8 == 0, "tensor copies write to multiples of 128 bytes");
    static_assert(CLUSTER == 1 || !SPLIT, "k is shared by a cluster, or in parts");
    const int rank = CLUSTER > 1 ? cluster_rank() : 0;
    const int group = __shfl_sync(kAllLanes, threadIdx.x / kGroup, 0) - 1;  // -1: producer

    if (threadIdx.x == 0) {
        start_dependents();
        if constexpr (TENSOR_A || !kOneStep) tensor_prefetch(&map_a);
        if constexpr (TENSOR_B || !kOneStep) tensor_prefetch(&map_b);
        if constexpr (!TENSOR_A && !kOneStep) tensor_prefetch(&partial_a);
        if constexpr (!TENSOR_B && !kOneStep) tensor_prefetch(&partial_b);
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(&full[i], Load::kArrivals);
            barrier_init(&empty[i], SHAPE::kGroups * kGroup / kWarp);
        }
        for (int i = 0; Load::kGathers && i < kAhead; ++i) barrier_init(&arrived[i], Load::kStarts);
        fence_barrier_init();
    }
    const int across = (n + SHAPE::kN - 1) / SHAPE::kN;
    const int down = (m + SHAPE::kM - 1) / SHAPE::kM;
    const int all = down * across * batches;
    const int block = blockIdx.x;
    const int tile = SPLIT ? block % all : block / CLUSTER, part = SPLIT ? block / all : 0;
    const Place<SHAPE::kM, SHAPE::kN, 8> at(tile, down, across);
    // This block's piece of k, in steps
    const int steps = (k + kDepth - 1) / kDepth, pieces = SPLIT ? splits : CLUSTER, piece = SPLIT ? part : rank;
    const int each = steps / pieces, longer = steps % pieces;  // pieces that have a step more than `each`
    const int begin = piece * each + min(piece, longer), end = begin + each + (piece < longer);

    const SuperRows of_a{&partial_a, static_cast<int>(A_K ? m : k), static_cast<int>(A_K ? k : m)};
    const SuperRows of_b{&partial_b, static_cast<int>(B_K ? n : k), static_cast<int>(B_K ? k : n)};
    const Load load(&map_a, &map_b, of_a, of_b, at.m0, at.n0, a_batch ? at.batch : 0, b_batch ? at.batch : 0);
    __syncthreads();
    wait_for_predecessor();

    float sums[1][SHAPE::kN / 2];                   // of a chain
    float total[kChains ? SHAPE::kN / 2 : 1] = {};  // of all chains, if there are several
    RingPlace<STAGES> place;
    if (Load::kGathers && kOneStep && group <= 0) {
        // before this thread arrives: the barrier must not complete without the tensor copies
        if ((TENSOR_A || TENSOR_B) && threadIdx.x == 0) load(shared, begin * kDepth, full);
        load.load_directly(shared, a + at.batch * a_batch, b + at.batch * b_batch, begin * kDepth, full);
    }
    if (group < 0) {
        if constexpr (Load::kGathers && !kOneStep) {
            RingPlace<kAhead> slot;
            const int warp = __shfl_sync(kAllLanes, threadIdx.x / kWarp, 0);
            const bool starts = threadIdx.x % kWarp == 0;
            for (int i = 0; i < kAhead && begin + i < end && starts; ++i)
                load.start(raw + i * Load::kRaw, (begin + i) * kDepth, &arrived[i], warp);
            for (int step = begin; step < end; ++step) {
                char* const stage = shared + place.stage * Load::kStage;
                char* const rows = raw + slot.stage * Load::kRaw;
                barrier_wait(&empty[place.stage], place.parity ^ 1);
                if (threadIdx.x == 0) load(stage, step * kDepth, &full[place.stage]);
                barrier_wait(&arrived[slot.stage], slot.parity);
                load.shift(stage, rows, step * kDepth, &full[place.stage]);
                named_sync(1, kGroup);  // all rows have been read: others may overwrite them
                if (starts && step + kAhead < end)
                    load.start(rows, (step + kAhead) * kDepth, &arrived[slot.stage], warp);
                place.next();
                slot.next();
            }
        } else if (!Load::kGathers && threadIdx.x == 0) {
            for (int step = begin; step < end; ++step) {
                barrier_wait(&empty[place.stage], place.parity ^ 1);
                load(shared + place.stage * Load::kStage, step * kDepth, &full[place.stage]);
                place.next();
            }
        }
        __syncwarp();  // the first lane has left the loop, too: the block's next barrier is for whole warps
    } else {
        const int lane = threadIdx.x % kWarp;
        const unsigned ring = shared_address(shared);
        int reading = -1;  // the stage that the products in flight read
        for (int step = begin; step < end; ++step) {
            barrier_wait(&full[place.stage], place.parity);
            const unsigned stage = ring + place.stage * Load::kStage;
            const bool new_chain = kChains && (step - begin) % kChain == 0;
            if constexpr (kChains) {
                if (new_chain && step > begin) add_chain(total, sums[0]);
            }
            multiply<T, A_K, B_K>(
                sums, stage + group * kPanelBytes, stage + Load::A::kBytes, step > begin && !new_chain);
            wgmma_wait<1>();  // the products of the step before are complete
            if (reading >= 0 && lane == 0) barrier_arrive(&empty[reading]);
            reading = place.stage;
            place.next();
        }
        wgmma_wait<0>();
        wgmma_result(sums[0]);
        if constexpr (kChains) add_chain(total, sums[0]);
    }
    const auto& all_sums = [&]() -> auto& {
        if constexpr (kChains)
            return total;
        else
            return sums[0];
    }();
    if constexpr (SPLIT) {
        const int64 first = (static_cast<int64>(part) * all + tile) * SHAPE::kFours;
        if (group >= 0) Parts<SHAPE>::store(reinterpret_cast<float4*>(parts) + first, group, all_sums);
    } else {
        using Finish = Epilogue<U, R, ACTIVATION, C, BIAS, RESIDUAL>;
        const Finish finish{c + at.batch * c_batch, c_row, c_col, bias + at.batch * bias_batch, bias_row, bias_col,
            residual + at.batch * residual_batch, residual_row, residual_col, alpha, beta, scale};
        const Output<R> out{d + at.batch * d_batch, d_row, d_col, static_cast<int>(m), static_cast<int>(n)};
        __syncthreads();  // all products are complete: the ring's memory is free
        if constexpr (kDirect) {
            using Stored = Store<R, SHAPE::kN / 2, false, Finish>;
            if (group >= 0)
                Stored::template by_lanes<SHAPE::kBuffers>(
                    shared + group * SHAPE::kBuffers * 8192, all_sums, out, finish, at.m0 + group * 64, at.n0);
        } else {
            float* const sums_of_tile = reinterpret_cast<float*>(shared);
            if (group >= 0) Tile::store(sums_of_tile, all_sums);
            if constexpr (CLUSTER > 1)
                cluster_sync();
            else
                __syncthreads();
            store_shared_sums<SHAPE, BY_COLUMNS>(sums_of_tile, rank, at.m0, at.n0, out, finish);
            if constexpr (CLUSTER > 1) cluster_sync();  // no block may exit while another one reads its sums
        }
    }
}

// Adds up the partial sums of split_k. `adders` warps share the parts of 32 groups of four sums: each adds every
// adders-th part, and the first one adds what they have. grid: 16 warps per block, block: 512; adders: 1, 2, 4, 8 or 16
template <class R, class U, class SHAPE, int ACTIVATION, int C, int BIAS, int RESIDUAL>
__global__ void split_k_join(const R* c, R* d, int64 c_row, int64 c_col, int64 c_batch, int64 d_row, int64 d_col,
    int64 d_batch, int64 m, int64 n, int64 batches, float alpha, float beta, const U* bias, int64 bias_row,
    int64 bias_col, int64 bias_batch, const R* residual, int64 residual_row, int64 residual_col, int64 residual_batch,
    float scale, const float* parts, int splits, int adders) {
    constexpr int kWarps = 16;
    __shared__ float4 sums[kWarps][kWarp];
    const int across = (n + SHAPE::kN - 1) / SHAPE::kN;
    const int down = (m + SHAPE::kM - 1) / SHAPE::kM;
    const int64 all = down * across * batches * SHAPE::kFours;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, adder = warp % adders;
    const int64 i = (static_cast<int64>(blockIdx.x) * (kWarps / adders) + warp / adders) * kWarp + lane;
    static_assert(SHAPE::kFours % kWarp == 0, "the sums of a warp are in one tile");
    if (threadIdx.x == 0) start_dependents();
    wait_for_predecessor();
    const float4* const from = reinterpret_cast<const float4*>(parts) + i;
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
    for (int part = adder; i < all && part < splits; part += adders) add(total, from[part * all]);
    if (adders > 1) {
        sums[warp][lane] = total;
        __syncthreads();
        for (int other = 1; adder == 0 && other < adders; ++other) add(total, sums[warp + other][lane]);
    }
    if (adder > 0 || i >= all) return;
    const Place<SHAPE::kM, SHAPE::kN, 8> at(i / SHAPE::kFours, down, across);
    const Epilogue<U, R, ACTIVATION, C, BIAS, RESIDUAL> finish{c + at.batch * c_batch, c_row, c_col,
        bias + at.batch * bias_batch, bias_row, bias_col, residual + at.batch * residual_batch, residual_row,
        residual_col, alpha, beta, scale};
    const Output<R> out{d + at.batch * d_batch, d_row, d_col, static_cast<int>(m), static_cast<int>(n)};
    const typename Parts<SHAPE>::Four four(i % SHAPE::kFours);
    const float each[4] = {total.x, total.y, total.z, total.w};
    float results[4];
    const auto row = [&](int e) { return at.m0 + four.row + e / 2 * 8; };
    const auto col = [&](int e) { return at.n0 + four.col + e % 2; };
#pragma unroll
    for (int e = 0; e < 4; ++e) results[e] = finished(each[e], row(e), col(e), out, finish);
#pragma unroll
    for (int e = 0; e < 4; ++e)
        if (row(e) < out.m && col(e) < out.n) out.at(row(e), col(e)) = static_cast<R>(results[e]);
}
