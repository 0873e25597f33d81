// Row softmax or log-softmax of scale * x + mask that reads each element once, 16 bytes at a time. The row is held in
// registers as floats. 16-bit elements without a mask are held as loaded, in half the registers; their scores and
// exponentials are recomputed when needed.
//
// Parameters in rows.cuh. LANES threads share a row: part of a warp or the whole block. Each holds HELD pieces of VEC
// elements; LANES * HELD * VEC is at least cols. VEC > 1 needs contiguous columns, 16-byte aligned rows, cols a
// multiple of VEC, and a mask that can be read in pieces of VEC too; VEC = 1 takes any strides.
//
// Bottleneck: memory bandwidth: one read and one write per element, and one read of a mask that is not broadcast.
#include "rows.cuh"

// Forces the compiler to use `piece` itself again: floats it kept from earlier conversions would need the saved
// registers.
template <class PIECE>
__device__ __forceinline__ void forget_what_was_made_of(PIECE& piece) {
    static_assert(sizeof(PIECE) == 16, "four registers");
    uint4& words = reinterpret_cast<uint4&>(piece);
    asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
}

// x, y: (rows, cols); grid: ceil(rows / (BLOCK / LANES)), block: BLOCK
template <class T, class M, int MASK, bool LOG, int BLOCK, int LANES, int HELD, int VEC>
__global__ void __launch_bounds__(BLOCK) registers(const T* x, const M* mask, T* y, int64 x_row, int64 x_col,
    int64 m_row, int64 m_col, int64 y_row, int64 y_col, int64 rows, int64 cols, float scale) {
    static_assert(BLOCK % kWarp == 0 && BLOCK % LANES == 0, "whole warps, whole groups");
    static_assert(LANES <= kWarp || LANES == BLOCK, "a group past a warp is the block: its barrier is the block's");
    __shared__ float maxima[kWarp], sums[kWarp];
    constexpr int kRows = BLOCK / LANES;    // of a block
    const int lane = threadIdx.x % LANES;   // 0 .. LANES - 1
    const int group = threadIdx.x / LANES;  // 0 .. kRows - 1
    const int64 row = static_cast<int64>(blockIdx.x) * kRows + group;
    const bool inside = row < rows;  // threads past the last row stay for the shuffles
    // The first column of this thread's piece i.
    const auto column = [&](int i) {
        const int number = i * LANES + lane;  // of the piece in the row: 0 .. HELD * LANES - 1
        return static_cast<int64>(number) * VEC;
    };
    x += row * x_row;
    y += row * y_row;
    if constexpr (MASK != kNoMask) mask += row * m_row;

    // All loads before the first use, so that they are in flight together.
    Pack<T, VEC> pieces[HELD];
    Pack<M, VEC> masks[MASK == kNoMask ? 1 : HELD];
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        if (!inside || column(i) >= cols) continue;
        pieces[i] = *reinterpret_cast<const Pack<T, VEC>*>(x + column(i) * x_col);
        if constexpr (MASK != kNoMask) masks[i] = *reinterpret_cast<const Pack<M, VEC>*>(mask + column(i) * m_col);
    }
    constexpr bool kAsTheyCame = MASK == kNoMask && VEC == 8;
    float held[kAsTheyCame ? 1 : HELD][VEC], maximum = -kInfinity;
    bool seen = false;
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const bool within = inside && column(i) < cols;
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
            float found = -kInfinity;
            if constexpr (MASK == kNoMask) {
                if (within) found = score<MASK>(pieces[i].at[k], 0, scale, seen);
            } else {
                if (within) found = score<MASK>(pieces[i].at[k], masks[i].at[k], scale, seen);
            }
            maximum = fmaxf(maximum, found);
            if constexpr (!kAsTheyCame) held[i][k] = found;
        }
        if constexpr (kAsTheyCame) forget_what_was_made_of(pieces[i]);
    }
    const auto value = [&](int i, int k) {
        if constexpr (kAsTheyCame)
            return inside && column(i) < cols ? score<MASK>(pieces[i].at[k], 0, scale, seen) : -kInfinity;
        else
            return held[i][k];
    };
    bool any = true;
    if constexpr (LANES > kWarp) {
        maximum = warps_reduce_block(maximum, maxima, Max());
        if constexpr (MASK != kNoMask) any = __syncthreads_or(seen);
    } else {
        maximum = lanes_reduce<LANES>(maximum, Max());
        if constexpr (MASK != kNoMask) any = lanes_reduce<LANES>(seen ? 1.0f : 0.0f, Max()) != 0.0f;
    }

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
            const float shifted = value(i, k) - maximum, power = exponential(shifted);
            sum += power;
            if constexpr (!kAsTheyCame) held[i][k] = LOG ? shifted : power;
        }
        if constexpr (kAsTheyCame) forget_what_was_made_of(pieces[i]);
    }
    if constexpr (LANES > kWarp)
        sum = warps_reduce_block(sum, sums, Sum());
    else
        sum = lanes_reduce<LANES>(sum, Sum());
    const float last = LOG ? logf(sum) : 1.0f / sum;

#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        if (!inside || column(i) >= cols) continue;
        Pack<T, VEC> piece;
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
            float power = value(i, k);  // LOG: its logarithm
            if constexpr (kAsTheyCame) power = LOG ? power - maximum : exponential(power - maximum);
            const float result = LOG ? power - last : power * last;
            // A row that the mask hides completely becomes 0 (log-softmax: -inf), whatever x is.
            piece.at[k] = static_cast<T>(any ? result : LOG ? -kInfinity : 0.0f);
        }
        *reinterpret_cast<Pack<T, VEC>*>(y + column(i) * y_col) = piece;
    }
}
