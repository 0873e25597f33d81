// Online attention on tensor cores: a warp keeps the scores and the output of 16 queries in registers.
//
// Parameters as in problem.cuh, elements half or bfloat16 of any alignment, scale = log2(e) times the factor on the
// scores. A block computes WARPS * 16 queries of one head. Tiles of KEYS keys and values are copied through registers,
// VECTOR elements at a time, to shared memory with padded lines of D + 8 elements, which ldmatrix reads without bank
// conflicts. D is d rounded up to a supported size; elements past d, sq or skv are zero.
//
// Bottleneck: latency. No arithmetic overlaps the copy of a tile, and each fragment of keys and values is used for 16
// queries only. The next variant copies ahead and reuses fragments.
#include "../common/pack.cuh"
#include "warp_rows.cuh"

// Copies `lines` lines of d elements from `from` to a padded shared tile of LINES lines of D; the rest becomes zero.
template <class T, int D, int LINES, int THREADS, int VECTOR>
__device__ __forceinline__ void copy_tile(char* tile, const T* from, int64 row, int lines, int d) {
    using Piece = Pack<T, VECTOR>;
    constexpr int kAlong = D / VECTOR;  // pieces of a line
    for (int i = threadIdx.x; i < LINES * kAlong; i += THREADS) {
        const int line = i / kAlong;             // 0 .. LINES - 1
        const int column = i % kAlong * VECTOR;  // 0 .. D - VECTOR
        Piece piece = {};
        if (line < lines && column < d) piece = *reinterpret_cast<const Piece*>(from + line * row + column);
        *reinterpret_cast<Piece*>(tile + Padded<D>::place(line, 0) + column * 2) = piece;
    }
}

// q, o: (batch, heads, sq, d); k, v: (batch, heads / group, skv, d); grid: all heads x blocks of queries
template <class T, int D, int WARPS, int KEYS, int VECTOR>
__global__ void __launch_bounds__(WARPS* kWarp) tensor_cores(const T* q, const T* k, const T* v, T* o, int64 q_batch,
    int64 q_head, int64 q_row, int64 k_batch, int64 k_head, int64 k_row, int64 v_batch, int64 v_head, int64 v_row,
    int64 o_batch, int64 o_head, int64 o_row, int batches, int heads, int group, int sq, int skv, int d, float scale,
    int causal) {
    constexpr int kThreads = WARPS * kWarp, kRows = WARPS * 16;
    extern __shared__ __align__(128) char shared[];
    char* const keys = shared + kRows * Padded<D>::kLine;
    char* const values = keys + KEYS * Padded<D>::kLine;
    const int blocks = (sq + kRows - 1) / kRows;        // of a head
    const int first_row = blockIdx.x % blocks * kRows;  // 0 .. sq - 1
    const Head head(blockIdx.x / blocks, heads, group);
    q = head.queries(q, HeadStrides{q_batch, q_head, q_row}) + first_row * q_row;
    k = head.keys(k, HeadStrides{k_batch, k_head, k_row});
    v = head.keys(v, HeadStrides{v_batch, v_head, v_row});
    const int lane = threadIdx.x % kWarp;                     // 0 .. 31
    const int warp_row = threadIdx.x / kWarp * 16;            // 0 .. kRows - 16
    const int limit = key_limit(first_row, sq, skv, causal);  // of the first row
    const int seen = max(min(limit + kRows - 1, skv), 0);     // by any of the rows
    const int lane_limit = limit + (causal ? warp_row + lane / 4 : 0);

    copy_tile<T, D, kRows, kThreads, VECTOR>(shared, q, q_row, sq - first_row, d);
    WarpRows<T, D, 1, KEYS, Padded<D>> rows(warp_row);
    for (int first = 0; first < seen; first += KEYS) {
        copy_tile<T, D, KEYS, kThreads, VECTOR>(keys, k + first * k_row, k_row, skv - first, d);
        copy_tile<T, D, KEYS, kThreads, VECTOR>(values, v + first * v_row, v_row, skv - first, d);
        __syncthreads();
        rows.multiply_keys(shared_address(shared), shared_address(keys));
        if (first + KEYS > min(limit, skv)) rows.mask(lane_limit - first, skv - first);
        rows.exponentiate(scale);
        rows.multiply_values(shared_address(values));
        __syncthreads();
    }
    rows.divide(lane_limit, skv);

    o = head.queries(o, HeadStrides{o_batch, o_head, o_row});
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int row = first_row + warp_row + lane / 4 + e / 2 * 8;  // may be past the last
            const int column = n * 8 + lane % 4 * 2 + e % 2;              // 0 .. D - 1
            if (row < sq && column < d) o[row * o_row + column] = static_cast<T>(rows.out[0][n][e]);
        }
}
