// The same with two teams of warps that take turns at the tensor cores: while one multiplies, the other makes its
// exponentials.
//
// Parameters and tiles as in 05_flash.cu. Each scheduler has one warp of either team. Time goes in slots, parted by
// barriers. In the slots of its own kind (even for team 0, odd for team 1) a team multiplies the weights of the tile
// before with its values and the queries with the next tile's keys, both products in one go; in the others it makes
// weights of these scores. So a tile takes two slots, each as long as one team's products, and the tensor cores rest
// only at the barriers. Step n is tile `tiles - 1 - n`; its keys are read in slots 2n and 2n + 1, its values in 2n + 2
// and 2n + 3, and what slot 2n needs was copied from slot 2n - 2 on, when the buffer came free.
//
// The rows of a block go to the teams in turn, 16 * TILES at a time, so that both see about as many tiles.
//
// Source of the idea: Shah et al., "FlashAttention-3: Fast and accurate attention with asynchrony and low-precision",
// 2024.
//
// Bound by: the rate at which mma.sync feeds the tensor cores. wgmma, which reads its operands from shared memory and
// runs beside the warp's other work, is what Hopper has for more.
#include "flash.cuh"

// q, o: (batch, heads, sq, d); k, v: (batch, heads / group, skv, d); grid: all heads x blocks of queries
template <class T, int D, int WARPS, int TILES, int KEYS, bool GUARDED>
__global__ void __launch_bounds__(WARPS* kWarp, 1) ping_pong(const T* q, const T* k, const T* v, T* o, int64 q_batch,
    int64 q_head, int64 q_row, int64 k_batch, int64 k_head, int64 k_row, int64 v_batch, int64 v_head, int64 v_row,
    int64 o_batch, int64 o_head, int64 o_row, int batches, int heads, int group, int sq, int skv, int d, float scale,
    int causal, int section) {
    static_assert(WARPS == 8, "two teams of one warp a scheduler");
    constexpr int kThreads = WARPS * kWarp, kRows = WARPS * TILES * 16;
    constexpr unsigned kTile = KEYS * D * 2;         // bytes
    extern __shared__ __align__(128) char shared[];  // queries, two tiles of keys, two of values
    char *const key_ring = shared + kRows * D * 2, *const value_ring = key_ring + 2 * kTile;
    const BlockWork<kRows, KEYS> work(batches * heads, section, sq, skv, causal);
    const Head head(work.head, heads, group);
    const int tiles = work.tiles;
    const TileCopy<T, D, kRows, kThreads> queries(
        head.queries(q, Strides{q_batch, q_head, q_row}) + work.first_row * q_row, q_row, sq - work.first_row, d);
    const TileCopy<T, D, KEYS, kThreads> keys(head.keys(k, Strides{k_batch, k_head, k_row}), k_row, skv, d);
    const TileCopy<T, D, KEYS, kThreads> values(head.keys(v, Strides{v_batch, v_head, v_row}), v_row, skv, d);
    const auto fill = [&](const TileCopy<T, D, KEYS, kThreads>& copy, char* ring, int step) {
        const int tile = tiles - 1 - step;
        if (GUARDED || (tile + 1) * KEYS > skv)
            copy.template start<true>(ring + step % 2 * kTile, tile * KEYS);
        else
            copy.template start<false>(ring + step % 2 * kTile, tile * KEYS);
    };
    if (tiles > 0) {
        queries.template start<true>(shared, 0);
        fill(keys, key_ring, 0);
    }

    const int warp = threadIdx.x / kWarp, team = warp / (WARPS / 2);
    const int warp_row = (warp % (WARPS / 2) * 2 + team) * TILES * 16;
    WarpRows<T, D, TILES, KEYS, Swizzled<D>> rows(warp_row);
    const unsigned query_tile = shared_address(shared), key_tiles = shared_address(key_ring);
    const unsigned value_tiles = shared_address(value_ring);
    const int warp_limit = work.limit + (causal ? warp_row : 0), lane_limit = warp_limit + threadIdx.x % kWarp / 4;
    const auto sees = [&](int tile) { return tile * KEYS < warp_limit + TILES * 16 - 1; };

    const int slots = tiles > 0 ? 2 * tiles + 2 : 0;
    for (int slot = 0; slot < slots; ++slot) {
        if (slot % 2 == 0) copy_async_wait();
        __syncthreads();
        if (slot % 2 == 0) {
            if (slot / 2 + 1 < tiles) fill(keys, key_ring, slot / 2 + 1);
            if (slot / 2 < tiles) fill(values, value_ring, slot / 2);
        }
        if (slot < team) continue;
        const int step = (slot - team) / 2, tile = tiles - 1 - step;
        const bool seen = step < tiles && sees(tile);
        if ((slot - team) % 2 == 0) {
            const bool before = step > 0 && sees(tile + 1);
            const unsigned value_tile = value_tiles + (step - 1) % 2 * kTile, key_tile = key_tiles + step % 2 * kTile;
            if (before &&
                seen) {  // (one piece of code without a branch: the second product's fragments are read early)
                rows.multiply_values(value_tile);
                rows.multiply_keys(query_tile, key_tile);
            } else if (before) {
                rows.multiply_values(value_tile);
            } else if (seen) {
                rows.multiply_keys(query_tile, key_tile);
            }
        } else if (seen) {
            if (tile >= work.whole) rows.mask(lane_limit - tile * KEYS, skv - tile * KEYS);
            rows.exponentiate(scale);
            rows.round();
        }
    }
    rows.divide(lane_limit, skv);
    const int row = work.first_row + warp_row;
    store_rows<T, D, TILES>(
        rows, shared, warp_row, head.queries(o, Strides{o_batch, o_head, o_row}) + row * o_row, o_row, sq - row, d);
}
