// Attention on tensor cores with copies a tile ahead of the arithmetic: the FlashAttention-2 algorithm.
//
// Parameters as in problem.cuh, elements half or bfloat16, scale = log2(e) times the factor on the scores; every row of
// q, k, v and o is 16-byte aligned. A block computes WARPS * TILES * 16 queries of one head. Keys and values are copied
// by cp.async in tiles of KEYS, two buffers each, from the last tile that any of its queries sees to the first. One
// barrier per tile: after it the tile is visible to all threads and the other buffer can be refilled.
//
// Work is balanced: blocks do not load fully masked tiles, a warp skips tiles that are masked for all its rows, only
// tiles on the diagonal or past the end are masked, and blocks with the most tiles start first, so that short ones end
// the launch. `section` heads run at a time: as many as have keys and values that fit in L2.
//
// Source of the algorithm: Dao, "FlashAttention-2: Faster attention with better parallelism and work partitioning",
// 2023.
//
// Bottleneck: latency. The tensor cores are busy 62 % of the time (H200, head size 128): the output and scores of 32
// queries fill the registers of a warp, so a scheduler has only two warps to hide the latency of fragments and
// exponentials. On Hopper wgmma is faster: it reads operands from shared memory and runs asynchronously.
#include "../common/copy_async.cuh"
#include "lengths.cuh"
#include "warp_rows.cuh"

// Copies LINES lines of D elements to a shared tile. Lines past `lines` become zero: their values must be finite, since
// 0 times NaN would reach the output.
template <class T, int D, int LINES, int THREADS>
struct TileCopy {
    static constexpr int kAlong = D % 64 == 0 ? 8 : 4;  // adjacent pieces that neighbouring threads copy
    static constexpr int kStep = THREADS / kAlong;      // lines at once
    static_assert(LINES % kStep == 0 && kStep % 8 == 0, "every thread copies the same share, with one swizzle");

    const T* from;  // this thread's first piece
    int64 row;      // elements between lines
    unsigned to;    // bytes within the tile
    int line, lines;
    int pieces;  // pieces of a line from this thread's column on

    __device__ __forceinline__ TileCopy(const T* base, int64 row_, int lines_, int d) : row(row_), lines(lines_) {
        const int piece = threadIdx.x % kAlong;  // 0 .. kAlong - 1
        line = threadIdx.x / kAlong;             // 0 .. kStep - 1
        from = base + line * row + piece * 8;
        to = Swizzled<D>::place(line, piece);
        pieces = d / 8 - piece;
    }

    // GUARDED: the tile may reach past the end, or lines are shorter than D.
    template <bool GUARDED>
    __device__ __forceinline__ void start(char* tile, int first) const {
        const T* at = from + first * row;
#pragma unroll
        for (int i = 0; i < LINES / kStep; ++i, at += kStep * row)
#pragma unroll
            for (int j = 0; j < D / 8 / kAlong; ++j) {
                const int line_on = i * kStep;    // lines from the thread's first piece: 0 .. LINES - kStep
                const int piece_on = j * kAlong;  // pieces from there: 0 .. D / 8 - kAlong
                char* const place = tile + to + line_on * D * 2 + piece_on * 16;
                const bool inside = !GUARDED || (first + line + line_on < lines && piece_on < pieces);
                copy_async_or_zero<16>(place, inside ? at + piece_on * 8 : from, inside);
            }
    }
};

// The work of one block. all_sq: the queries of each head; sq and skv become those of the block's batch entry.
template <class T, int D, int WARPS, int TILES, int KEYS, bool GUARDED, class Lengths>
__device__ __forceinline__ void flash_block(const T* q, const T* k, const T* v, T* o, HeadStrides q_strides,
    HeadStrides k_strides, HeadStrides v_strides, HeadStrides o_strides, int batches, int heads, int group, int all_sq,
    int skv, int d, float scale, int causal, int section, Lengths lengths) {
    constexpr int kThreads = WARPS * kWarp, kRows = WARPS * TILES * 16;
    constexpr bool kOwn = Lengths::differ();  // each batch entry has its own lengths
    // Whether copies start after a tile's first product: if a block has the SM to itself, the product then begins at
    // once (4 % faster on an H200 at head size 256); if two blocks share the SM, it is slower (5 % at 64).
    constexpr bool kLate = kThreads > 128;
    constexpr unsigned kTile = KEYS * D * 2;         // bytes
    extern __shared__ __align__(128) char shared[];  // queries, then keys and values, twice
    char* const ring = shared + kRows * D * 2;

    const int blocks = (all_sq + kRows - 1) / kRows;  // of a head
    const int all = batches * heads;
    const int before = blockIdx.x / (section * blocks) * section;  // heads of earlier sections: 0 .. all - 1
    const int rest = blockIdx.x % (section * blocks);              // the block's number in its section
    const int abreast = min(section, all - before);                // heads of this section
    const Head head(before + rest % abreast, heads, group);
    const int block = blocks - 1 - rest / abreast;  // of the head: 0 .. blocks - 1, the last first
    const int first_row = block * kRows;
    int sq = all_sq;
    lengths.read(head.batch, sq, skv);
    if (kOwn && first_row >= sq) skv = 0;  // no query of the entry: only zeros are stored

    // The number of tiles that any query of the block sees, and of tiles that all its queries see completely.
    const int limit = key_limit(first_row, sq, skv, causal);
    const int keys_seen_by_any = max(min(limit + kRows - 1, skv), 0);
    const int keys_seen_by_all = max(min(limit, skv), 0);
    const int tiles = (keys_seen_by_any + KEYS - 1) / KEYS;
    const int whole = keys_seen_by_all / KEYS;

    const TileCopy<T, D, kRows, kThreads> queries(
        head.queries(q, q_strides) + first_row * q_strides.row, q_strides.row, sq - first_row, d);
    const TileCopy<T, D, KEYS, kThreads> keys(head.keys(k, k_strides), k_strides.row, skv, d);
    const TileCopy<T, D, KEYS, kThreads> values(head.keys(v, v_strides), v_strides.row, skv, d);
    const auto fill = [&](int tile) {
        char* const at = ring + tile % 2 * 2 * kTile;
        if (GUARDED || (tile + 1) * KEYS > skv) {
            keys.template start<true>(at, tile * KEYS);
            values.template start<true>(at + kTile, tile * KEYS);
        } else {
            keys.template start<false>(at, tile * KEYS);
            values.template start<false>(at + kTile, tile * KEYS);
        }
    };
    if (tiles > 0) {
        queries.template start<true>(shared, 0);
        fill(tiles - 1);
    }

    const int lane = threadIdx.x % kWarp;                   // 0 .. 31
    const int warp_row = threadIdx.x / kWarp * TILES * 16;  // 0 .. kRows - TILES * 16
    WarpRows<T, D, TILES, KEYS, Swizzled<D>> rows(warp_row);
    const unsigned query_tile = shared_address(shared);
    const unsigned key_tiles = shared_address(ring);
    const int warp_limit = limit + (causal ? warp_row : 0);  // of the warp's first row
    const int lane_limit = warp_limit + lane / 4;            // of the lane's

    for (int tile = tiles - 1; tile >= 0; --tile) {
        copy_async_wait();
        __syncthreads();  // this tile is visible; all reads of the other are done
        const bool seen = tile * KEYS < warp_limit + TILES * 16 - 1;
        const unsigned at = key_tiles + tile % 2 * 2 * kTile;
        if (!kLate && tile > 0) fill(tile - 1);
        if (seen) rows.multiply_keys(query_tile, at);
        if (kLate && tile > 0) fill(tile - 1);
        if (!seen) continue;
        if (tile >= whole) rows.mask(lane_limit - tile * KEYS, skv - tile * KEYS);
        rows.exponentiate(scale);
        rows.multiply_values(at + kTile);
    }
    rows.divide(lane_limit, skv);

    // Stage the output in the shared memory of the warp's own queries, so that stores are 16 bytes per lane.
    __syncwarp();  // all ldmatrix reads are done before any lane writes
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int line = warp_row + i * 16 + half * 8 + lane / 4;  // 0 .. kRows - 1
                const int within = lane % 4 * 4;                           // bytes of piece n: 0 .. 12
                const unsigned place = Swizzled<D>::place(line, n) + within;
                const unsigned pair = pack<T>(rows.out[i][n][2 * half], rows.out[i][n][2 * half + 1]);
                *reinterpret_cast<unsigned*>(shared + place) = pair;
            }
    __syncwarp();
    T* const to = head.queries(o, o_strides) + (first_row + warp_row) * o_strides.row;
    constexpr int kPieces = D / 8;
#pragma unroll 4
    for (int i = lane; i < TILES * 16 * kPieces; i += kWarp) {
        const int line = i / kPieces;   // 0 .. TILES * 16 - 1
        const int piece = i % kPieces;  // 0 .. kPieces - 1
        if (first_row + warp_row + line < all_sq && piece * 8 < d) {
            uint4 out = *reinterpret_cast<const uint4*>(shared + Swizzled<D>::place(warp_row + line, piece));
            if (kOwn && first_row + warp_row + line >= sq) out = uint4{};
            *reinterpret_cast<uint4*>(to + line * o_strides.row + piece * 8) = out;
        }
    }
}

// q, o: (batch, heads, sq, d); k, v: (batch, heads / group, skv, d); grid: all heads x blocks of queries
template <class T, int D, int WARPS, int TILES, int KEYS, bool GUARDED>
__global__ void __launch_bounds__(WARPS* kWarp, 256 / (WARPS * kWarp)) flash(const T* q, const T* k, const T* v, T* o,
    int64 q_batch, int64 q_head, int64 q_row, int64 k_batch, int64 k_head, int64 k_row, int64 v_batch, int64 v_head,
    int64 v_row, int64 o_batch, int64 o_head, int64 o_row, int batches, int heads, int group, int sq, int skv, int d,
    float scale, int causal, int section) {
    flash_block<T, D, WARPS, TILES, KEYS, GUARDED>(q, k, v, o, {q_batch, q_head, q_row}, {k_batch, k_head, k_row},
        {v_batch, v_head, v_row}, {o_batch, o_head, o_row}, batches, heads, group, sq, skv, d, scale, causal, section,
        SameLengths());
}

// As flash, with the lengths of each batch entry (see OwnLengths).
template <class T, int D, int WARPS, int TILES, int KEYS, bool GUARDED>
__global__ void __launch_bounds__(WARPS* kWarp, 256 / (WARPS * kWarp)) flash_lengths(const T* q, const T* k, const T* v,
    T* o, int64 q_batch, int64 q_head, int64 q_row, int64 k_batch, int64 k_head, int64 k_row, int64 v_batch,
    int64 v_head, int64 v_row, int64 o_batch, int64 o_head, int64 o_row, int batches, int heads, int group, int sq,
    int skv, int d, float scale, int causal, int section, const int* lengths, int64 step, int64 to_keys) {
    flash_block<T, D, WARPS, TILES, KEYS, GUARDED>(q, k, v, o, {q_batch, q_head, q_row}, {k_batch, k_head, k_row},
        {v_batch, v_head, v_row}, {o_batch, o_head, o_row}, batches, heads, group, sq, skv, d, scale, causal, section,
        OwnLengths{lengths, step, to_keys});
}
