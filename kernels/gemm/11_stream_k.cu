// fp32 product by as many blocks as the chip holds, each with the same number of steps of k, across tile borders.
//
// Parameters as in 09_pipelined.cu; `parts`: scratch for two tiles per block; `others`: the output on other devices,
// for a product that several devices share (one batch). Two kernels, one after the other: stream_k and stream_k_join.
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
    bool B_K, int VEC_A, int VEC_B, int VEC_D, int OTHERS>
__global__ void __launch_bounds__(WARPS_M * WARPS_N * kWarp * SLICES, RESIDENT) stream_k(const float* a, const float* b,
    const float* c, float* d, int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch,
    int64 c_row, int64 c_col, int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k,
    int64 batches, float alpha, float beta, float* parts, const __grid_constant__ OtherOutputs<OTHERS> others) {
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
        if (OTHERS > 0 && count == cut.depth) {
            __syncthreads();  // the tile is stored
            others.template copy<BM, BN, VEC_D>(d, d_row, d_col, m0, n0, m, n);
        }
        unit += count;
    }
}

// A tile that several stretches share: its position, and its parts. The first is in slot `first_slot`; those of the
// stretches from `second` up to, without, `stop` are each in the slot of their stretch's first tile.
struct SharedTile {
    int64 m0, n0, batch, first_slot, second, stop;

    // Tile `number` if there are fewer tiles than stretches (`by_tile`); otherwise the one that stretch `number` is the
    // first to begin inside, not at its first step. If there is none, stop is 0.
    __device__ __forceinline__ SharedTile(const Cut& cut, int64 number, bool by_tile, int bm, int bn) {
        const int64 index = by_tile ? number : cut.begin(number) / cut.depth;
        const int64 start = index * cut.depth;                                  // its first step
        second = ((start + 1) * cut.blocks + cut.units - 1) / cut.units;        // begins after the tile's first step
        stop = ((start + cut.depth) * cut.blocks + cut.units - 1) / cut.units;  // begins after its last step
        if (by_tile ? second == stop : second != number || second == stop) stop = 0;
        first_slot = 2 * (second - 1) + (cut.begin(second - 1) < start);  // a stretch's first tile, or its last
        m0 = cut.row(index) * bm;
        n0 = cut.col(index) * bn;
        batch = cut.batch(index);
    }
};

// Adds the parts of one tile that several of stream_k's `blocks` stretches share. SHARE: how many warps of a block add
// parts of the same 128 sums: 1 if a tile has few parts, 8 if it has hundreds. grid: (the smaller of tiles and
// `blocks`, BM * BN * SHARE / 1024), block: 256. VEC_D: as for FmaTile::store
//
// One thread finds the tile for its block: the divisions of 64-bit integers would otherwise take longer than the sums.
template <int BM, int BN, int TM, int TN, int WARPS_M, int WARPS_N, int SHARE, int VEC_D, int OTHERS>
__global__ void __launch_bounds__(256) stream_k_join(const float* c, float* d, int64 c_row, int64 c_col, int64 c_batch,
    int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches, float alpha, float beta,
    const float* parts, int64 blocks, const __grid_constant__ OtherOutputs<OTHERS> others) {
    using Tile = FmaTile<BM, BN, TM, TN, WARPS_M, WARPS_N, 2, false, false, 1, 1>;
    static_assert(BM * BN * SHARE % 1024 == 0 && TN % 4 == 0, "four sums per thread");
    __shared__ float4 shared[SHARE > 1 ? 256 : 1];
    __shared__ longlong2 found[3];  // as pairs, which are stored 16 bytes at a time
    if (threadIdx.x == 0) {
        const Cut cut(m, n, k, batches, BM, BN, Tile::BK, blocks);
        const SharedTile tile(cut, blockIdx.x, gridDim.x < blocks, BM, BN);
        found[0] = make_longlong2(tile.m0, tile.n0);
        found[1] = make_longlong2(tile.batch, tile.first_slot);
        found[2] = make_longlong2(tile.second, tile.stop);
    }
    __syncthreads();
    const int64 m0 = found[0].x;  // 0 .. m - 1
    const int64 n0 = found[0].y;  // 0 .. n - 1
    const int64 z = found[1].x;   // 0 .. batches - 1
    const int64 second = found[2].x;
    const int64 stop = found[2].y;
    if (stop == 0) return;

    const int warp = threadIdx.x / kWarp;                           // 0 .. 7
    const int share = warp % SHARE;                                 // the parts that this warp adds: 0 .. SHARE - 1
    const unsigned line = blockIdx.y * (8 / SHARE) + warp / SHARE;  // 128 sums: 0 .. BM * BN / 128 - 1
    const int lane = threadIdx.x % kWarp;                           // 0 .. 31
    // Four neighbouring sums of one thread of the tile: sums (i, j) to (i, j + 3)
    constexpr int kWarps = Tile::kThreads / kWarp;
    const int thread = line % kWarps * kWarp + lane;  // 0 .. Tile::kThreads - 1
    const int four = line / kWarps;                   // 0 .. TM * TN / 4 - 1
    const int i = four / (TN / 4);                    // 0 .. TM - 1
    const int j = four % (TN / 4) * 4;                // 0 .. TN - 4
    const float* const mine = parts + (i * TN + j) * Tile::kThreads + thread;
    float sum[4] = {};
#pragma unroll 4
    for (int64 block = second - 1 + share; block < stop; block += SHARE) {
        const int64 slot = block < second ? found[1].y : 2 * block;
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] += mine[slot * (BM * BN) + e * Tile::kThreads];
    }
    if constexpr (SHARE > 1) {
        shared[threadIdx.x] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        __syncthreads();
        if (share != 0) return;
#pragma unroll
        for (int other = 1; other < SHARE; ++other) {
            const float4 part = shared[threadIdx.x + other * kWarp];
            sum[0] += part.x, sum[1] += part.y, sum[2] += part.z, sum[3] += part.w;
        }
    }
    const Tile of(thread);
    const int64 r = m0 + of.row_of(i);
    const int64 s = n0 + of.col_of(j);
    if (r >= m) return;
    const float* const of_c = c + z * c_batch + r * c_row;
    float* const of_d = d + z * d_batch + r * d_row;
#pragma unroll
    for (int e = 0; e < 4; e += VEC_D)
        if (s + e < n) {
            Tile::template write<VEC_D>(sum + e, of_c, c_col, of_d, d_col, s + e, alpha, beta);
#pragma unroll
            for (int o = 0; o < OTHERS; ++o)
                Tile::template write<VEC_D>(
                    sum + e, of_c, c_col, others.first[o] + r * d_row, d_col, s + e, alpha, beta);
        }
}
