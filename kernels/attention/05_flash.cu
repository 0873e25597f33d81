// Attention with tensor cores, its copies a tile ahead of the arithmetic: FlashAttention-2's algorithm.
//
// Parameters as in problem.cuh, elements half or bfloat16, scale = log2(e) times the factor on the scores; every row of
// q, k, v and o begins on 16 bytes. A block makes WARPS * TILES * 16 queries of one head; keys and values come in tiles
// of KEYS through two buffers each, by cp.async, from the last tile that any of its queries sees to the first. One
// barrier a tile: behind it the tile is there for all, and the other buffer, which everyone has left, is filled.
//
// Work is even: tiles that no query sees are not loaded, a warp passes over tiles that none of its own rows sees, and
// only tiles on the diagonal or past the end are masked. GUARDED: d is less than D.
//
// Source of the algorithm: Dao, "FlashAttention-2: Faster attention with better parallelism and work partitioning",
// 2023.
//
// Bound by: the tensor cores standing idle. The two warps of a scheduler use them at the same time, at half the rate
// each, and then both make their exponentials. The next rung lets them take turns.
#include "flash.cuh"

// q, o: (batch, heads, sq, d); k, v: (batch, heads / group, skv, d); grid: all heads x blocks of queries
template <class T, int D, int WARPS, int TILES, int KEYS, bool GUARDED>
__global__ void __launch_bounds__(WARPS* kWarp, 256 / (WARPS * kWarp)) flash(const T* q, const T* k, const T* v, T* o,
    int64 q_batch, int64 q_head, int64 q_row, int64 k_batch, int64 k_head, int64 k_row, int64 v_batch, int64 v_head,
    int64 v_row, int64 o_batch, int64 o_head, int64 o_row, int batches, int heads, int group, int sq, int skv, int d,
    float scale, int causal, int section) {
    constexpr int kThreads = WARPS * kWarp, kRows = WARPS * TILES * 16;
    constexpr unsigned kTile = KEYS * D * 2;         // bytes
    extern __shared__ __align__(128) char shared[];  // queries, then keys and values, twice
    char* const ring = shared + kRows * D * 2;
    const BlockWork<kRows, KEYS> work(batches * heads, section, sq, skv, causal);
    const Head head(work.head, heads, group);
    const int tiles = work.tiles;
    const TileCopy<T, D, kRows, kThreads> queries(
        head.queries(q, Strides{q_batch, q_head, q_row}) + work.first_row * q_row, q_row, sq - work.first_row, d);
    const TileCopy<T, D, KEYS, kThreads> keys(head.keys(k, Strides{k_batch, k_head, k_row}), k_row, skv, d);
    const TileCopy<T, D, KEYS, kThreads> values(head.keys(v, Strides{v_batch, v_head, v_row}), v_row, skv, d);
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

    const int warp_row = threadIdx.x / kWarp * TILES * 16;
    WarpRows<T, D, TILES, KEYS, Swizzled<D>> rows(warp_row);
    const unsigned query_tile = shared_address(shared), key_tiles = shared_address(ring);
    const int warp_limit = work.limit + (causal ? warp_row : 0), lane_limit = warp_limit + threadIdx.x % kWarp / 4;

    for (int tile = tiles - 1; tile >= 0; --tile) {
        copy_async_wait();
        __syncthreads();  // this tile is there, and nobody reads the other one any more
        if (tile > 0) fill(tile - 1);
        if (tile * KEYS >= warp_limit + TILES * 16 - 1) continue;
        const unsigned at = key_tiles + tile % 2 * 2 * kTile;
        rows.multiply_keys(query_tile, at);
        if (tile >= work.whole) rows.mask(lane_limit - tile * KEYS, skv - tile * KEYS);
        rows.exponentiate(scale);
        rows.round();
        rows.multiply_values(at + kTile);
    }
    rows.divide(lane_limit, skv);
    const int row = work.first_row + warp_row;
    store_rows<T, D, TILES>(
        rows, shared, warp_row, head.queries(o, Strides{o_batch, o_head, o_row}) + row * o_row, o_row, sq - row, d);
}
