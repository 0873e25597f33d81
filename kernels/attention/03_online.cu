// Online attention: scores are never stored. A block keeps the output of its queries in registers and processes the
// keys tile by tile, with a running maximum and sum for each query.
//
// Parameters as in problem.cuh, elements float, half or bfloat16, scale = log2(e) times the factor on the scores.
// 256 threads, 16 x 16, compute ROWS queries of one head. Thread (y, x) computes, for rows y, y + 16, ..., the scores
// of keys x, x + 16, ... and D / 16 columns of the output. Shared memory holds floats: ROWS x D queries, KEYS x D
// keys and as many values, ROWS x (KEYS + 4) exponentiated scores. D is d rounded up to a supported size; elements
// past d, sq or skv are zero. Tiles of floats are copied by cp.async during the other product; other types are copied
// through registers.
//
// Source of the algorithm: Dao, Fu, Ermon, Rudra, Re, "FlashAttention: Fast and memory-efficient exact attention with
// IO-awareness", 2022.
//
// Bottleneck: the float units, which are about as busy as in a plain matrix product. The next variant multiplies on
// tensor cores.
#include "../common/copy_async.cuh"
#include "../common/online.cuh"
#include "../common/pack.cuh"
#include "../common/reduce.cuh"
#include "lengths.cuh"
#include "problem.cuh"

constexpr int kSide = 16, kThreads = kSide * kSide;

// Floats from the start of a tile to 16-byte piece `piece` of line `line`. Piece p of line r is at p ^ (r % 8), so that
// the same piece of eight lines is in eight different groups of banks.
template <int D>
__device__ __forceinline__ int place(int line, int piece) {
    const int column = piece ^ line % 8;  // 0 .. D / 4 - 1
    return line * D + column * 4;
}

// Starts copying `lines` lines of d elements to a shared tile of LINES lines of D floats; the rest becomes zero.
template <int LINES, int D, int VECTOR, class T>
__device__ __forceinline__ void start_copy(float* tile, const T* from, int64 row, int lines, int d) {
    constexpr int kAlong = D / VECTOR;
#pragma unroll 4
    for (int i = threadIdx.x; i < LINES * kAlong; i += kThreads) {
        const int line = i / kAlong;             // 0 .. LINES - 1
        const int column = i % kAlong * VECTOR;  // 0 .. D - VECTOR
        const bool inside = line < lines && column < d;
        const T* const at = inside ? from + line * row + column : from;
        if constexpr (sizeof(T) == 4) {
            copy_async_or_zero<VECTOR * 4>(tile + place<D>(line, column / 4) + column % 4, at, inside);
        } else {
            Pack<T, VECTOR> pack = {};
            if (inside) pack = *reinterpret_cast<const Pack<T, VECTOR>*>(at);
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) {
                const int each = column + e;  // 0 .. D - 1
                tile[place<D>(line, each / 4) + each % 4] = static_cast<float>(pack.at[e]);
            }
        }
    }
}

// The work of one block. all_sq: the queries of each head; sq and skv become those of the block's batch entry.
template <class T, int D, int ROWS, int KEYS, int VECTOR, class Lengths>
__device__ __forceinline__ void online_block(const T* q, const T* k, const T* v, T* o, HeadStrides q_strides,
    HeadStrides k_strides, HeadStrides v_strides, HeadStrides o_strides, int heads, int group, int all_sq, int skv,
    int d, float scale, int causal, Lengths lengths) {
    static_assert(ROWS % kSide == 0 && KEYS % kSide == 0 && D % 32 == 0, "whole tiles");
    constexpr bool kOwn = Lengths::differ();    // each batch entry has its own lengths
    constexpr int kMine = ROWS / kSide;         // rows of a thread
    constexpr int kKeys = KEYS / kSide;         // keys of a thread
    constexpr int kLine = KEYS + 4;             // floats from one row of weights to the next
    constexpr int kWide = D % 64 == 0 ? 4 : 2;  // adjacent columns of a thread,
    constexpr int kGroups = D / kSide / kWide;  // and groups of them
    extern __shared__ __align__(16) float shared[];
    float* const queries = shared;
    float* const keys = queries + ROWS * D;
    float* const values = keys + KEYS * D;
    float* const weights = values + KEYS * D;
    const int x = threadIdx.x % kSide;  // 0 .. 15
    const int y = threadIdx.x / kSide;  // 0 .. 15

    const int blocks = (all_sq + ROWS - 1) / ROWS;       // of a head
    const int block = blocks - 1 - blockIdx.x % blocks;  // the last rows first: they see the most keys
    const int first_row = block * ROWS;
    const Head head(blockIdx.x / blocks, heads, group);
    int sq = all_sq;
    lengths.read(head.batch, sq, skv);
    if (kOwn && first_row >= sq) skv = 0;  // no query of the entry: only zeros are stored
    const int64 k_row = k_strides.row, v_row = v_strides.row;
    k = head.keys(k, k_strides);
    v = head.keys(v, v_strides);
    const int limit = key_limit(first_row, sq, skv, causal);  // of the first row
    const int seen = max(min(limit + ROWS - 1, skv), 0);      // by any of the rows

    float out[kMine][kGroups][kWide] = {}, maximum[kMine], sum[kMine] = {};  // sum: this thread's part
#pragma unroll
    for (int i = 0; i < kMine; ++i) maximum[i] = -kInfinity;
    start_copy<ROWS, D, VECTOR>(
        queries, head.queries(q, q_strides) + first_row * q_strides.row, q_strides.row, sq - first_row, d);
    start_copy<KEYS, D, VECTOR>(keys, k, k_row, skv, d);

    for (int first = 0; first < seen; first += KEYS) {
        copy_async_wait();
        __syncthreads();  // keys have arrived; the previous values and weights are free
        start_copy<KEYS, D, VECTOR>(values, v + first * v_row, v_row, skv - first, d);

        float score[kMine][kKeys] = {};
#pragma unroll 2
        for (int piece = 0; piece < D / 4; ++piece) {
            float4 b[kKeys];
#pragma unroll
            for (int j = 0; j < kKeys; ++j)
                b[j] = *reinterpret_cast<const float4*>(keys + place<D>(x, piece) + j * kSide * D);
#pragma unroll
            for (int i = 0; i < kMine; ++i) {
                const float4 a = *reinterpret_cast<const float4*>(queries + place<D>(y, piece) + i * kSide * D);
#pragma unroll
                for (int j = 0; j < kKeys; ++j) {
                    score[i][j] = fmaf(a.x, b[j].x, score[i][j]);
                    score[i][j] = fmaf(a.y, b[j].y, score[i][j]);
                    score[i][j] = fmaf(a.z, b[j].z, score[i][j]);
                    score[i][j] = fmaf(a.w, b[j].w, score[i][j]);
                }
            }
        }

        const bool whole = first + KEYS <= min(limit, skv);
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
            float top = maximum[i];
#pragma unroll
            for (int j = 0; j < kKeys; ++j) {
                const int key = first + x + j * kSide;
                if (!whole && (key >= skv || (causal && key >= limit + y + i * kSide))) score[i][j] = -kInfinity;
                top = fmaxf(top, score[i][j]);
            }
            top = lanes_reduce<kSide>(top, Max());
            const float shift = online_shift(top), factor = exp2f((maximum[i] - shift) * scale);
            maximum[i] = top;
            sum[i] *= factor;
#pragma unroll
            for (int g = 0; g < kGroups; ++g)
#pragma unroll
                for (int e = 0; e < kWide; ++e) out[i][g][e] *= factor;
#pragma unroll
            for (int j = 0; j < kKeys; ++j) {
                const float weight = exp2f((score[i][j] - shift) * scale);
                sum[i] += weight;
                const int row = y + i * kSide;  // 0 .. ROWS - 1
                weights[row * kLine + x + j * kSide] = weight;
            }
        }
        copy_async_wait();
        __syncthreads();  // values and weights have arrived; the keys are free
        if (first + KEYS < seen)
            start_copy<KEYS, D, VECTOR>(keys, k + (first + KEYS) * k_row, k_row, skv - first - KEYS, d);

#pragma unroll 2
        for (int j = 0; j < KEYS; j += 4) {
            Pack<float, kWide> b[4][kGroups];
#pragma unroll
            for (int e = 0; e < 4; ++e)
#pragma unroll
                for (int g = 0; g < kGroups; ++g) {
                    const int column = (g * kSide + x) * kWide;  // 0 .. D - kWide
                    const float* const at = values + place<D>(j + e, column / 4) + column % 4;
                    b[e][g] = *reinterpret_cast<const Pack<float, kWide>*>(at);
                }
#pragma unroll
            for (int i = 0; i < kMine; ++i) {
                const float4 a = *reinterpret_cast<const float4*>(weights + (y + i * kSide) * kLine + j);
#pragma unroll
                for (int g = 0; g < kGroups; ++g)
#pragma unroll
                    for (int c = 0; c < kWide; ++c) {
                        out[i][g][c] = fmaf(a.x, b[0][g].at[c], out[i][g][c]);
                        out[i][g][c] = fmaf(a.y, b[1][g].at[c], out[i][g][c]);
                        out[i][g][c] = fmaf(a.z, b[2][g].at[c], out[i][g][c]);
                        out[i][g][c] = fmaf(a.w, b[3][g].at[c], out[i][g][c]);
                    }
            }
        }
    }
    copy_async_wait();

    o = head.queries(o, o_strides);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
        const int row = first_row + y + i * kSide;  // may be past the last
        const float total = lanes_reduce<kSide>(sum[i], Sum());
        if (row >= all_sq) continue;
        const bool past = kOwn && row >= sq;  // of the entry's queries: 0, even if keys have NaN or infinity
        const float factor = keys_seen(row, sq, skv, causal) > 0 ? 1.0f / total : 0.0f;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int column = (g * kSide + x) * kWide;  // 0 .. D - kWide
            if (column >= d) continue;
            constexpr int kStore = VECTOR == 1 ? 1 : kWide;
#pragma unroll
            for (int c = 0; c < kWide; c += kStore) {
                Pack<T, kStore> pack;
#pragma unroll
                for (int e = 0; e < kStore; ++e) pack.at[e] = static_cast<T>(past ? 0.0f : out[i][g][c + e] * factor);
                *reinterpret_cast<Pack<T, kStore>*>(o + row * o_strides.row + column + c) = pack;
            }
        }
    }
}

// q, o: (batch, heads, sq, d); k, v: (batch, heads / group, skv, d); grid: all heads x blocks of queries, block: 256
template <class T, int D, int ROWS, int KEYS, int VECTOR>
__global__ void __launch_bounds__(kThreads) online(const T* q, const T* k, const T* v, T* o, int64 q_batch,
    int64 q_head, int64 q_row, int64 k_batch, int64 k_head, int64 k_row, int64 v_batch, int64 v_head, int64 v_row,
    int64 o_batch, int64 o_head, int64 o_row, int batches, int heads, int group, int sq, int skv, int d, float scale,
    int causal) {
    online_block<T, D, ROWS, KEYS, VECTOR>(q, k, v, o, {q_batch, q_head, q_row}, {k_batch, k_head, k_row},
        {v_batch, v_head, v_row}, {o_batch, o_head, o_row}, heads, group, sq, skv, d, scale, causal, SameLengths());
}

// As online, with the lengths of each batch entry (see OwnLengths).
template <class T, int D, int ROWS, int KEYS, int VECTOR>
__global__ void __launch_bounds__(kThreads) online_lengths(const T* q, const T* k, const T* v, T* o, int64 q_batch,
    int64 q_head, int64 q_row, int64 k_batch, int64 k_head, int64 k_row, int64 v_batch, int64 v_head, int64 v_row,
    int64 o_batch, int64 o_head, int64 o_row, int batches, int heads, int group, int sq, int skv, int d, float scale,
    int causal, const int* lengths, int64 step, int64 to_keys) {
    online_block<T, D, ROWS, KEYS, VECTOR>(q, k, v, o, {q_batch, q_head, q_row}, {k_batch, k_head, k_row},
        {v_batch, v_head, v_row}, {o_batch, o_head, o_row}, heads, group, sq, skv, d, scale, causal,
        OwnLengths{lengths, step, to_keys});
}
