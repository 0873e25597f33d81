// Attention of one warp's query rows on tensor cores: scores, softmax and output stay in the warp's registers.
//
// A warp has 16 * TILES rows and processes KEYS keys at a time. The scores of two neighbouring 16 x 8 tiles,
// exponentiated and rounded to pairs, are already in the layout of the second product's left operand, so P needs no
// shared memory. Each fragment of keys and values that is read from shared memory is used TILES times.
//
// The softmax is online, in powers of two: p = 2^(score * scale - shift); `scale` includes log2(e) / sqrt(d).
// `shift` is the row's maximum at its last update. It is updated only if a score exceeds it by more than 8: until then
// p is at most 2^8, which loses no accuracy, and the output is not rescaled. All elements of a row use the same rounded
// shift, so its rounding cancels in the division, however large the scores.
#pragma once
#include "../common/mma.cuh"
#include "problem.cuh"

constexpr float kHeadroom = 8.0f;  // in powers of two

// 2^x, 2 ulp; 0 for -inf.
__device__ __forceinline__ float exp2_fast(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// A tile of 16-bit elements in shared memory, lines of D; 16-byte piece p of line r is at p ^ (r % 8), so that the
// eight lines that ldmatrix reads at once are in different banks. (Lines of 64 or 192 bytes start at two bank offsets,
// so r / 2 % 4 swizzles the four pieces from each.) The tile is aligned to 128 bytes.
template <int D>
struct Swizzled {
    static_assert(D % 32 == 0, "whole groups of four pieces");
    static constexpr unsigned kMask = D % 64 == 0 ? 7 : 3;
    static constexpr unsigned kLine = D * 2;  // bytes

    // Bytes from the start of the tile to piece `piece` (0 .. D / 8 - 1) of line `line`.
    static __device__ __forceinline__ unsigned place(int line, int piece) {
        const unsigned start = line * kLine;
        const int turn = D % 64 == 0 ? line & 7 : line >> 1 & 3;  // 0 .. kMask
        return start + ((piece ^ turn) << 4);
    }
    // Moves an address inside a tile by `lines` (a multiple of 8) and `pieces` (even), both known at compile time.
    static __device__ __forceinline__ unsigned move(unsigned address, int lines, unsigned pieces) {
        return (address ^ ((pieces & kMask) << 4)) + lines * kLine + ((pieces & ~kMask) << 4);
    }
};

// A tile in lines of D + 8 elements: no swizzle, but some memory unused.
template <int D>
struct Padded {
    static constexpr unsigned kLine = (D + 8) * 2;

    static __device__ __forceinline__ unsigned place(int line, int piece) { return line * kLine + (piece << 4); }
    static __device__ __forceinline__ unsigned move(unsigned address, int lines, unsigned pieces) {
        return address + lines * kLine + (pieces << 4);
    }
};

template <class T, int D, int TILES, int KEYS, class Layout>
struct WarpRows {
    static_assert(D % 16 == 0 && KEYS % 16 == 0, "whole fragments");

    float out[TILES][D / 8][4];
    float score[TILES][KEYS / 8][4];
    float shift[TILES][2], sum[TILES][2];  // for rows g and g + 8; the sum is over this lane's keys
    unsigned queries, keys, values;        // this lane's offsets in the shared tiles, in bytes

    // row: the warp's first row within the shared tile of queries
    __device__ __forceinline__ explicit WarpRows(int row) {
        const int lane = threadIdx.x % kWarp;  // 0 .. 31
        const int line = lane % 8;             // 0 .. 7, in the matrix whose line the lane loads:
        const int matrix = lane / 8;           // 0 .. 3
        queries = Layout::place(row + line + matrix % 2 * 8, matrix / 2);
        keys = Layout::place(line + matrix / 2 * 8, matrix % 2);
        values = Layout::place(line + matrix % 2 * 8, matrix / 2);
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
#pragma unroll
            for (int n = 0; n < D / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) out[i][n][e] = 0.0f;
#pragma unroll
            for (int half = 0; half < 2; ++half) shift[i][half] = -kInfinity, sum[i][half] = 0.0f;
        }
    }

    // score = Q K^T. The arguments are addresses of shared tiles of queries and of KEYS keys.
    __device__ __forceinline__ void multiply_keys(unsigned query_tile, unsigned key_tile) {
#pragma unroll
        for (int i = 0; i < TILES; ++i)
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) score[i][n][e] = 0.0f;
#pragma unroll
        for (int k = 0; k < D / 16; ++k) {
            unsigned a[TILES][4];
#pragma unroll
            for (int i = 0; i < TILES; ++i) load_matrices(a[i], Layout::move(query_tile + queries, i * 16, k * 2));
#pragma unroll
            for (int n = 0; n < KEYS / 16; ++n) {
                unsigned b[4];
                load_matrices(b, Layout::move(key_tile + keys, n * 16, k * 2));
#pragma unroll
                for (int i = 0; i < TILES; ++i) {
                    multiply_add<T>(score[i][2 * n], a[i], b[0], b[1]);
                    multiply_add<T>(score[i][2 * n + 1], a[i], b[2], b[3]);
                }
            }
        }
    }

    // Masks the keys that a query does not see: from key `limit` on for the first of this lane's rows, one key later
    // for each following row (causal), and from key `end` on for all rows. Both count from the tile's first key.
    __device__ __forceinline__ void mask(int limit, int end) {
        const int column = threadIdx.x % 4 * 2;  // 0 .. 6
#pragma unroll
        for (int i = 0; i < TILES; ++i)
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int key = n * 8 + column + e % 2;  // 0 .. KEYS - 1
                    const int row_limit = limit + i * 16 + e / 2 * 8;
                    if (key >= min(row_limit, end)) score[i][n][e] = -kInfinity;
                }
    }

    // score = 2^(score * scale - shift); adds to this lane's sum. The shift is 0 while all scores so far are -inf.
    __device__ __forceinline__ void exponentiate(float scale) {
        float top[TILES][2];
        bool passed = false;
#pragma unroll
        for (int i = 0; i < TILES; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                top[i][half] = fmaxf(score[i][0][2 * half], score[i][0][2 * half + 1]);
#pragma unroll
                for (int n = 1; n < KEYS / 8; ++n)
                    top[i][half] = fmaxf(top[i][half], fmaxf(score[i][n][2 * half], score[i][n][2 * half + 1]));
                passed |= top[i][half] * scale > shift[i][half] + kHeadroom;
            }
        if (__any_sync(kAllLanes, passed)) {
#pragma unroll
            for (int i = 0; i < TILES; ++i)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float highest = top[i][half];
                    highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 1));
                    highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, 2));
                    const float now = fmaxf(shift[i][half], highest * scale);
                    const float factor = exp2_fast(shift[i][half] - (now == -kInfinity ? 0.0f : now));
                    shift[i][half] = now;
                    sum[i][half] *= factor;
#pragma unroll
                    for (int n = 0; n < D / 8; ++n) out[i][n][2 * half] *= factor, out[i][n][2 * half + 1] *= factor;
                }
        }
#pragma unroll
        for (int i = 0; i < TILES; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float by = shift[i][half] == -kInfinity ? 0.0f : shift[i][half];
#pragma unroll
                for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; ++e) {
                        score[i][n][e] = exp2_fast(fmaf(score[i][n][e], scale, -by));
                        sum[i][half] += score[i][n][e];
                    }
            }
    }

    // out += P V; P is the exponentiated scores rounded to T. value_tile: the address of a shared tile of KEYS
    // values.
    __device__ __forceinline__ void multiply_values(unsigned value_tile) {
#pragma unroll
        for (int k = 0; k < KEYS / 16; ++k) {
            unsigned a[TILES][4];
#pragma unroll
            for (int i = 0; i < TILES; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float* pair = &score[i][2 * k + j / 2][j % 2 * 2];
                    a[i][j] = pack<T>(pair[0], pair[1]);
                }
#pragma unroll
            for (int n = 0; n < D / 16; ++n) {
                unsigned b[4];
                load_matrices_transposed(b, Layout::move(value_tile + values, k * 16, n * 2));
#pragma unroll
                for (int i = 0; i < TILES; ++i) {
                    multiply_add<T>(out[i][2 * n], a[i], b[0], b[1]);
                    multiply_add<T>(out[i][2 * n + 1], a[i], b[2], b[3]);
                }
            }
        }
    }

    // out /= sum, or 0 in rows that see no key: `limit` and `end` as in mask, but from the first key of all. A row
    // whose scores are all -inf becomes 0 / 0.
    __device__ __forceinline__ void divide(int limit, int end) {
#pragma unroll
        for (int i = 0; i < TILES; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float total = sum[i][half];
                total += __shfl_xor_sync(kAllLanes, total, 1);
                total += __shfl_xor_sync(kAllLanes, total, 2);
                const int row_limit = limit + i * 16 + half * 8;
                const float factor = min(row_limit, end) <= 0 ? 0.0f : 1.0f / total;
#pragma unroll
                for (int n = 0; n < D / 8; ++n) out[i][n][2 * half] *= factor, out[i][n][2 * half + 1] *= factor;
            }
    }
};
