// Product of half or bfloat16 matrices by wgmma for few tiles: the blocks of a cluster share a tile's k.
//
// Parameters as in 12_tiles.cu, then `parts`, the scratch memory of partial sums, and `splits`, how many clusters share
// a tile. `vector`: the contiguous axis of d consists of aligned vectors of 4 elements. k is at least 64 * (pieces of k
// - 1) + 1. `partial_a`, `partial_b`: second maps of operands of super rows, as in warpgroup_tile.cuh.
//
// Improvement: a product of 128 x 128 outputs is a single tile, however long k is. Here each block of a cluster
// multiplies a piece of the tile's k and leaves its sums in shared memory; then each adds up a part of the tile, and
// reads the other blocks' sums through distributed shared memory. If a cluster of 8 is not enough, several clusters
// write their sums to scratch memory, and split_k_join adds them up. The order of all sums is fixed.
//
// A product with few rows is passed as its transpose: the larger matrix has the 64 rows of a wgmma, the smaller one its
// columns, as few as 16. Tiles of 64 or 128 rows are small, so copies have a deep ring instead of a second tile.
//
// Rows of any length that adjoin are copied to raw memory several steps ahead, by tensor copies of every 8th row, and
// shifted from there to the ring.
//
// Bottleneck: memory bandwidth, if the product has few rows; else the latency of the first copies and of the last sums.
#include "../common/dependent.cuh"
#include "warpgroup_tile.cuh"

// The tensor cores truncate each sum, so the error of a sum grows faster than its terms. Chains of so many steps are
// added up in float, unless the rounding of the output, to bfloat16, is larger than such errors.
constexpr int kChain = 64;
template <class R>
constexpr bool kInChains = true;
template <>
constexpr bool kInChains<__nv_bfloat16> = false;

constexpr int kAhead = 3;  // steps whose rows are copied to raw memory ahead

// GROUPS * 64 x BN: a tile. CLUSTER: blocks that share it.
template <int GROUPS, int BN, int STAGES, int CLUSTER>
struct Shape {
    static constexpr int kM = GROUPS * 64, kN = BN, kGroups = GROUPS, kStages = STAGES, kCluster = CLUSTER;
    static constexpr int kThreads = (GROUPS + 1) * kGroup;
    static constexpr int kFours = kM * kN / 4;  // groups of four neighbouring sums
};

// A tile's sums in shared memory. The contiguous axis of the output is contiguous here, too.
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

// Stores four neighbouring sums of the tile at (m0, n0): those with number `four`.
template <class SHAPE, bool BY_COLUMNS, class R, class FINISH>
__device__ __forceinline__ void write(
    float4 sums, int four, const Output<R>& out, const FINISH& finish, int m0, int n0) {
    constexpr int kAlong = Sums<SHAPE, BY_COLUMNS>::kAlong;
    const int along = four * 4 % kAlong, across = four * 4 / kAlong;
    const int row = m0 + (BY_COLUMNS ? along : across), col = n0 + (BY_COLUMNS ? across : along);
    if (row >= out.m || col >= out.n) return;
    const float from[4] = {sums.x, sums.y, sums.z, sums.w};
    R* const to = out.first + row * out.row + col * out.col;
    if (out.vector) {
        Pack<R, 4> rounded;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            rounded.at[i] = static_cast<R>(finish.at(from[i], row + (BY_COLUMNS ? i : 0), col + (BY_COLUMNS ? 0 : i)));
        *reinterpret_cast<Pack<R, 4>*>(to) = rounded;
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int my_row = row + (BY_COLUMNS ? i : 0), my_col = col + (BY_COLUMNS ? 0 : i);
            if (my_row < out.m && my_col < out.n)
                to[i * (BY_COLUMNS ? out.row : out.col)] = static_cast<R>(finish.at(from[i], my_row, my_col));
        }
    }
}

// grid: tiles * splits * CLUSTER, cluster: CLUSTER, block: 128 per 64 rows and 128,
// shared: the ring or Sums, whichever is larger, and 16 bytes per stage; kAhead times raw memory and 8 bytes
template <class T, class R, class U, class SHAPE, bool A_K, bool B_K, bool TENSOR_A, bool TENSOR_B, bool BY_COLUMNS,
    bool SPLIT, int ACTIVATION, bool ADDS_C, int BIAS, bool RESIDUAL>
__global__ void __launch_bounds__(SHAPE::kThreads, 1) split_k(const __grid_constant__ CUtensorMap map_a,
    const __grid_constant__ CUtensorMap map_b, const __grid_constant__ CUtensorMap partial_a,
    const __grid_constant__ CUtensorMap partial_b, const T* a, const T* b, const R* c, R* d, int64 a_row, int64 a_col,
    int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row, int64 c_col, int64 c_batch, int64 d_row,
    int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches, float alpha, float beta, const U* bias,
    int64 bias_row, int64 bias_col, int64 bias_batch, const R* residual, int64 residual_row, int64 residual_col,
    int64 residual_batch, float scale, int vector, float* parts, int splits) {
    constexpr int STAGES = SHAPE::kStages, CLUSTER = SHAPE::kCluster;
    using Load = Loader<T, SHAPE::kM, SHAPE::kN, A_K, B_K, TENSOR_A, TENSOR_B>;
    using Tile = Sums<SHAPE, BY_COLUMNS>;
    constexpr int kRing = STAGES * Load::kStage;
    constexpr bool kChains = kInChains<R>;
    extern __shared__ __align__(1024) char shared[];
    char* const raw = shared + (kRing > Tile::kBytes ? kRing : Tile::kBytes);
    uint64* const full = reinterpret_cast<uint64*>(raw + kAhead * Load::kRaw);
    uint64* const empty = full + STAGES;
    uint64* const arrived = empty + STAGES;  // of raw memory
    static_assert(kRing % 128 == 0 && Tile::kBytes % 128 == 0, "tensor copies write to multiples of 128 bytes");
    const int rank = CLUSTER > 1 ? cluster_rank() : 0;
    const int group = __shfl_sync(kAllLanes, threadIdx.x / kGroup, 0) - 1;  // -1: producer

    if (threadIdx.x == 0) {
        start_dependents();
        tensor_prefetch(&map_a);
        tensor_prefetch(&map_b);
        if constexpr (!TENSOR_A) tensor_prefetch(&partial_a);
        if constexpr (!TENSOR_B) tensor_prefetch(&partial_b);
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(&full[i], Load::kArrivals);
            barrier_init(&empty[i], SHAPE::kGroups * kGroup / kWarp);
        }
        for (int i = 0; Load::kGathers && i < kAhead; ++i) barrier_init(&arrived[i], 1);
        fence_barrier_init();
    }
    const int across = (n + SHAPE::kN - 1) / SHAPE::kN;
    const int down = (m + SHAPE::kM - 1) / SHAPE::kM;
    const int all = down * across * batches;
    const int cluster = blockIdx.x / CLUSTER;
    const int tile = cluster % all, part = cluster / all;
    const Place<SHAPE::kM, SHAPE::kN, 8> at(tile, down, across);
    // This block's piece of k, in steps
    const int64 steps = (k + kDepth - 1) / kDepth, pieces = splits * CLUSTER, piece = part * CLUSTER + rank;
    const int begin = piece * steps / pieces, end = (piece + 1) * steps / pieces;

    const SuperRows of_a{&partial_a, static_cast<int>(A_K ? m : k), static_cast<int>(A_K ? k : m)};
    const SuperRows of_b{&partial_b, static_cast<int>(B_K ? n : k), static_cast<int>(B_K ? k : n)};
    const Load load(&map_a, &map_b, of_a, of_b, at.m0, at.n0, a_batch ? at.batch : 0, b_batch ? at.batch : 0);
    __syncthreads();
    wait_for_predecessor();

    float* const sums_of_tile = reinterpret_cast<float*>(shared);
    float sums[1][SHAPE::kN / 2];                   // of a chain
    float total[kChains ? SHAPE::kN / 2 : 1] = {};  // of all chains, if there are several
    RingPlace<STAGES> place;
    if (group < 0) {
        if constexpr (Load::kGathers) {
            RingPlace<kAhead> slot;
            for (int i = 0; i < kAhead && begin + i < end && threadIdx.x == 0; ++i)
                load.start(raw + i * Load::kRaw, (begin + i) * kDepth, &arrived[i]);
            for (int step = begin; step < end; ++step) {
                char* const stage = shared + place.stage * Load::kStage;
                char* const rows = raw + slot.stage * Load::kRaw;
                barrier_wait(&empty[place.stage], place.parity ^ 1);
                if (threadIdx.x == 0) load(stage, step * kDepth, &full[place.stage]);
                barrier_wait(&arrived[slot.stage], slot.parity);
                load.shift(stage, rows, step * kDepth, &full[place.stage]);
                named_sync(1, kGroup);  // all rows have been read: others may overwrite them
                if (threadIdx.x == 0 && step + kAhead < end)
                    load.start(rows, (step + kAhead) * kDepth, &arrived[slot.stage]);
                place.next();
                slot.next();
            }
        } else if (threadIdx.x == 0) {
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
    __syncthreads();  // all products are complete: the sums may overwrite the ring
    if (group >= 0) {
        if constexpr (kChains)
            Tile::store(sums_of_tile, total);
        else
            Tile::store(sums_of_tile, sums[0]);
    }
    if constexpr (CLUSTER > 1)
        cluster_sync();
    else
        __syncthreads();

    const Epilogue<U, R, ACTIVATION, ADDS_C, BIAS, RESIDUAL> finish{c + at.batch * c_batch, c_row, c_col,
        bias + at.batch * bias_batch, bias_row, bias_col, residual + at.batch * residual_batch, residual_row,
        residual_col, alpha, beta, scale};
    const Output<R> out{d + at.batch * d_batch, d_row, d_col, static_cast<int>(m), static_cast<int>(n), vector != 0};
    constexpr int kShare = SHAPE::kFours / CLUSTER;
    static_assert(SHAPE::kFours % CLUSTER == 0, "equal shares");
    for (int i = threadIdx.x; i < kShare; i += SHAPE::kThreads) {
        const int four = rank * kShare + i;
        const float4* const from = reinterpret_cast<const float4*>(
            sums_of_tile + four * 4 / Tile::kAlong * Tile::kPitch + four * 4 % Tile::kAlong);
        float4 total = CLUSTER > 1 ? cluster_load(from, 0) : *from;
#pragma unroll
        for (int other = 1; other < CLUSTER; ++other) add(total, cluster_load(from, other));
        if constexpr (SPLIT)
            reinterpret_cast<float4*>(parts)[(static_cast<int64>(part) * all + tile) * SHAPE::kFours + four] = total;
        else
            write<SHAPE, BY_COLUMNS>(total, four, out, finish, at.m0, at.n0);
    }
    if constexpr (CLUSTER > 1) cluster_sync();  // no block may exit while another one reads its sums
}

// Adds up the partial sums of split_k. A warp adds every 16th part of 32 groups of four sums, then the first warp
// adds what the block's warps have. grid: any, block: 512
template <class R, class U, class SHAPE, bool BY_COLUMNS, int ACTIVATION, bool ADDS_C, int BIAS, bool RESIDUAL>
__global__ void split_k_join(const R* c, R* d, int64 c_row, int64 c_col, int64 c_batch, int64 d_row, int64 d_col,
    int64 d_batch, int64 m, int64 n, int64 batches, float alpha, float beta, const U* bias, int64 bias_row,
    int64 bias_col, int64 bias_batch, const R* residual, int64 residual_row, int64 residual_col, int64 residual_batch,
    float scale, int vector, const float* parts, int splits) {
    constexpr int kWarps = 16;
    __shared__ float4 sums[kWarps][kWarp];
    const int across = (n + SHAPE::kN - 1) / SHAPE::kN;
    const int down = (m + SHAPE::kM - 1) / SHAPE::kM;
    const int64 all = down * across * batches * SHAPE::kFours;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    static_assert(SHAPE::kFours % kWarp == 0, "a warp's sums are in one tile");
    if (threadIdx.x == 0) start_dependents();
    wait_for_predecessor();
    for (int64 first = blockIdx.x * kWarp; first < all; first += gridDim.x * kWarp) {
        const int64 i = first + lane;
        const float4* const from = reinterpret_cast<const float4*>(parts) + i;
        float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
        for (int part = warp; part < splits; part += kWarps) add(total, from[part * all]);
        sums[warp][lane] = total;
        __syncthreads();
        if (warp == 0) {
#pragma unroll
            for (int other = 1; other < kWarps; ++other) add(total, sums[other][lane]);
            const Place<SHAPE::kM, SHAPE::kN, 8> at(i / SHAPE::kFours, down, across);
            const Epilogue<U, R, ACTIVATION, ADDS_C, BIAS, RESIDUAL> finish{c + at.batch * c_batch, c_row, c_col,
                bias + at.batch * bias_batch, bias_row, bias_col, residual + at.batch * residual_batch, residual_row,
                residual_col, alpha, beta, scale};
            const Output<R> out{
                d + at.batch * d_batch, d_row, d_col, static_cast<int>(m), static_cast<int>(n), vector != 0};
            write<SHAPE, BY_COLUMNS>(total, i % SHAPE::kFours, out, finish, at.m0, at.n0);
        }
        __syncthreads();
    }
}
