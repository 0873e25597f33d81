// What 05_flash.cu and 06_ping_pong.cu share: which queries and tiles a block has, its copies into shared memory, and
// the way of its output.
#pragma once
#include "../common/copy_async.cuh"
#include "warp_rows.cuh"

// The queries of a block, ROWS from first_row on, and their tiles of KEYS keys: `tiles` that any of them sees, of which
// all of them see the first `whole` to the last key. `limit`: the keys that the first query sees (see key_limit).
//
// Blocks with the most tiles start first, so that a short one at the end of the launch keeps few waiting. `section`
// heads advance together, as many as the L2 holds keys and values of.
template <int ROWS, int KEYS>
struct BlockWork {
    int head, first_row, limit, tiles, whole;

    __device__ __forceinline__ BlockWork(int heads, int section, int sq, int skv, bool causal) {
        const int blocks = (sq + ROWS - 1) / ROWS;
        const int before = blockIdx.x / (section * blocks) * section, rest = blockIdx.x % (section * blocks);
        const int abreast = min(section, heads - before);
        head = before + rest % abreast;
        first_row = (blocks - 1 - rest / abreast) * ROWS;
        limit = key_limit(first_row, sq, skv, causal);
        tiles = (max(min(limit + ROWS - 1, skv), 0) + KEYS - 1) / KEYS;
        whole = max(min(limit, skv), 0) / KEYS;
    }
};

// Copies of LINES lines of D elements to a shared tile. A line past `lines` is made zero: its values must be finite,
// since 0 times NaN would reach the output.
template <class T, int D, int LINES, int THREADS>
struct TileCopy {
    static constexpr int kAlong = D % 64 == 0 ? 8 : 4;  // pieces side by side that neighbouring threads copy
    static constexpr int kStep = THREADS / kAlong;      // lines at once
    static_assert(LINES % kStep == 0 && kStep % 8 == 0, "every thread copies the same share, all of one swizzle");

    const T* from;  // this thread's first piece
    int64 row;      // elements between lines
    unsigned to;    // bytes within the tile
    int line, lines;
    int pieces;  // of a line, those of this thread's column on

    __device__ __forceinline__ TileCopy(const T* base, int64 row_, int lines_, int d) : row(row_), lines(lines_) {
        const int piece = threadIdx.x % kAlong;
        line = threadIdx.x / kAlong;
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
                char* const place = tile + to + i * kStep * D * 2 + j * kAlong * 16;
                const bool inside = !GUARDED || (first + line + i * kStep < lines && j * kAlong < pieces);
                copy_async_or_zero<16>(place, inside ? at + j * kAlong * 8 : from, inside);
            }
    }
};

// Writes a warp's output, through the shared memory of its own queries, so that whole lines are written, 16 bytes a
// lane. row: the first of the warp's rows in the shared tile; o: where that row goes; rows: how many there are, sq at
// most.
template <class T, int D, int TILES, class Rows>
__device__ __forceinline__ void store_rows(const Rows& mine, char* tile, int row, T* o, int64 o_row, int rows, int d) {
    const int lane = threadIdx.x % kWarp;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const unsigned place = Swizzled<D>::place(row + i * 16 + half * 8 + lane / 4, n) + lane % 4 * 4;
                *reinterpret_cast<unsigned*>(tile + place) =
                    pack<T>(mine.out[i][n][2 * half], mine.out[i][n][2 * half + 1]);
            }
    __syncwarp();
    constexpr int kPieces = D / 8;
#pragma unroll 4
    for (int i = lane; i < TILES * 16 * kPieces; i += kWarp) {
        const int line = i / kPieces, piece = i % kPieces;
        if (line < rows && piece * 8 < d)
            *reinterpret_cast<uint4*>(o + line * o_row + piece * 8) =
                *reinterpret_cast<const uint4*>(tile + Swizzled<D>::place(row + line, piece));
    }
}
