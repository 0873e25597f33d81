// fp32 product by as many blocks as the chip holds, each with the same number of steps of k, across tile borders.
//
// Parameters as in 09_pipelined.cu; `parts`: scratch for two tiles per block. Two kernels, one after the other:
// stream_k and stream_k_join.
//
// Improvement: equal work for all blocks. All steps of BK of all tiles form one sequence, and each block takes an
// equal stretch of it. A tile within one stretch is finished by its block. At most two tiles of a stretch, at its ends,
// are shared with other blocks: the block writes their sums to `parts`, and the second kernel adds the parts of each
// shared tile in the order of k. So no wave is partly filled, a single tile with a large k is split among all blocks,
// and the result does not depend on timing.
//
// Source of the idea: Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix
// Multiplication on the GPU", 2023.
//
// Groups of warps may share a stretch's k as in 10_sliced.cu, which makes fewer parts.
//
// Bottleneck: as in 09, and the parts, two tiles per block, which go through L2.
#include "fma_tile.cuh"

// How the sequence of steps is split: `units` steps in all, `depth` per tile, `blocks` equal stretches.
struct Cut {
    int64 units, depth, blocks, tiles_m, tiles_n;

    __device__ __forceinline__ Cut(int64 m, int64 n, int64 k, int64 batches, int bm, int bn, int bk, int64 blocks)
        : depth(k > 0 ? (k + bk - 1) / bk : 1), blocks(blocks), tiles_m((m + bm - 1) / bm), tiles_n((n + bn - 1) / bn) {
        units = tiles_m * tiles_n * batches * depth;
    }
    // The first step of a block's stretch.
    __device__ __forceinline__ int64 begin(int64 block) const { return block * units / blocks; }

    // The position of tile `index`: tiles are numbered down a column of tiles, then across, then by batches.
    __device__ __forceinline__ int64 row(int64 index) const { return index % tiles_m; }            // 0 .. tiles_m - 1
    __device__ __forceinline__ int64 col(int64 index) const { return index / tiles_m % tiles_n; }  // 0 .. tiles_n - 1
    __device__ __forceinline__ int64 batch(int64 index) const { return index / tiles_m / tiles_n; }
};

// grid: any, block: 32 * WARPS_M * WARPS_N * SLICES
template <int BM, int BN, int TM, int TN, int WARPS_M, int WARPS_N, int STAGES, int SLICES, int RESIDENT, bool A_K,
    bool B_K, int VEC_A, int VEC_B, int VEC_D>
__global__ void __launch_bounds__(WARPS_M * WARPS_N * kWarp * SLICES, RESIDENT) stream_k(const float* a, const float* b,
    const float* c, float* d, int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch,
    int64 c_row, int64 c_col, int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k,
    int64 batches, float alpha, float beta, float* parts) {
    using Tile = FmaTile<BM, BN, TM, TN, WARPS_M, WARPS_N, STAGES, A_K, B_K, VEC_A, VEC_B>;
    extern __shared__ float4 stages[];
    float* const shared = reinterpret_cast<float*>(stages);
    const int slice = threadIdx.x / Tile::kThreads;  // 0 .. SLICES - 1
    float* const ring = shared + slice * STAGES * Tile::kStage;
    const Cut cut(m, n, k, batches, BM, BN, Tile::BK, gridDim.x);
    const int64 begin = cut.begin(blockIdx.x);
    const int64 end = cut.begin(blockIdx.x + 1);
    for (int64 unit = begin; unit < end;) {
        // The steps of one tile that are in this stretch: [first, first + count) of [0, cut.depth)
        const int64 index = unit / cut.depth;
        const int64 first = unit - index * cut.depth;
        const int64 count = cut.depth - first < end - unit ? cut.depth - first : end - unit;
        const int64 m0 = cut.row(index) * BM;  // 0 .. m - 1
        const int64 n0 = cut.col(index) * BN;  // 0 .. n - 1
        const int64 z = cut.batch(index);      // 0 .. batches - 1
        // This slice's share of them, in k: [k0, k1)
        const int64 steps = (count + SLICES - 1) / SLICES;
        const int64 from = first + slice * steps;
        const int64 k0 = from * Tile::BK;
        const int64 to = first + count < from + steps ? first + count : from + steps;
        const int64 k1 = to * Tile::BK < k ? to * Tile::BK : k;
        // Whole steps of the last slice, which has the fewest
        const int64 end_k = (first + count) * Tile::BK < k ? (first + count) * Tile::BK : k;
        const int64 last_k0 = (first + (SLICES - 1) * steps) * Tile::BK;
        const int64 whole = (end_k - last_k0) / Tile::BK;

        const float* of_a = a + z * a_batch;
        const float* of_b = b + z * b_batch;
        Tile tile;
        tile.product(ring, of_a, a_row, a_col, of_b, b_row, b_col, m0, n0, m, n, k0, k1, steps, whole);
        tile.gather(shared, SLICES);
        if (slice == 0) {
            if (count == cut.depth) {
                const float* of_c = c + z * c_batch;
                float* of_d = d + z * d_batch;
                tile.template store<VEC_D>(of_c, c_row, c_col, of_d, d_row, d_col, m0, n0, m, n, alpha, beta);
            } else {
                const unsigned slot = 2 * blockIdx.x + (unit != begin);  // the stretch's first tile, or its last
                tile.keep(parts + slot * (BM * BN), threadIdx.x);
            }
        }
        unit += count;
    }
}

// Adds the parts of one tile that several of stream_k's `blocks` stretches share. If there are fewer tiles than
// stretches, the tile is blockIdx.x; otherwise the one that stretch blockIdx.x is the first to begin inside, not at its
// first step. SHARE: how many warps of a block add parts of the same 128 sums: 1 if a tile has few parts, 8 if it has
// hundreds. grid: (the smaller of tiles and `blocks`, BM * BN * SHARE / 1024), block: 256
template <int BM, int BN, int TM, int TN, int WARPS_M, int WARPS_N, int SHARE>
__global__ void __launch_bounds__(256) stream_k_join(const float* c, float* d, int64 c_row, int64 c_col, int64 c_batch,
    int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches, float alpha, float beta,
    const float* parts, int64 blocks) {
    using Tile = FmaTile<BM, BN, TM, TN, WARPS_M, WARPS_N, 2, false, false, 1, 1>;
    static_assert(BM * BN * SHARE % 1024 == 0 && Tile::kThreads % 4 == 0, "four sums per thread");
    __shared__ float4 shared[256];
    const Cut cut(m, n, k, batches, BM, BN, Tile::BK, blocks);
    const bool by_tile = gridDim.x < blocks;
    const int64 index = by_tile ? blockIdx.x : cut.begin(blockIdx.x) / cut.depth;  // of the tile
    const int64 start = index * cut.depth;                                         // its first step
    // The first stretch that begins after the tile's first step
    const int64 second = ((start + 1) * blocks + cut.units - 1) / cut.units;
    if (by_tile ? second == blocks || cut.begin(second) >= start + cut.depth : second != blockIdx.x) return;

    const int warp = threadIdx.x / kWarp;                           // 0 .. 7
    const int share = warp % SHARE;                                 // the parts that this warp adds: 0 .. SHARE - 1
    const unsigned line = blockIdx.y * (8 / SHARE) + warp / SHARE;  // 128 sums: 0 .. BM * BN / 128 - 1
    const int lane = threadIdx.x % kWarp;                           // 0 .. 31
    const int first = (line * kWarp + lane) * 4;                    // this thread's four: 0 .. BM * BN - 4
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int64 block = second - 1 + share; block < cut.blocks && cut.begin(block) < start + cut.depth; block += SHARE) {
        const int64 slot = 2 * block + (cut.begin(block) < start);  // the stretch's first tile, or its last
        const float4 part = *reinterpret_cast<const float4*>(parts + slot * (BM * BN) + first);
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    if constexpr (SHARE > 1) {
        shared[threadIdx.x] = sum;
        __syncthreads();
        if (share != 0) return;
#pragma unroll
        for (int other = 1; other < SHARE; ++other) {
            const float4 part = shared[threadIdx.x + other * kWarp];
            sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
        }
    }
    const int64 m0 = cut.row(index) * BM;  // 0 .. m - 1
    const int64 n0 = cut.col(index) * BN;  // 0 .. n - 1
    const int64 z = cut.batch(index);      // 0 .. batches - 1
    // Sum (i, j) of four neighbouring threads of the tile, in the layout of FmaTile::keep
    const int number = first / Tile::kThreads;  // 0 .. TM * TN - 1
    const int i = number / TN;                  // 0 .. TM - 1
    const int j = number % TN;                  // 0 .. TN - 1
    const int thread = first % Tile::kThreads;  // 0 .. Tile::kThreads - 4
    const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const Tile of(thread + e);
        const int64 r = m0 + of.row_of(i);
        const int64 s = n0 + of.col_of(j);
        if (r >= m || s >= n) continue;
        float value = alpha * values[e];
        if (beta != 0.0f) value = fmaf(beta, c[z * c_batch + r * c_row + s * c_col], value);
        d[z * d_batch + r * d_row + s * d_col] = value;
    }
}
