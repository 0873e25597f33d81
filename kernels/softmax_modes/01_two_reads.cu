// Row softmax or log-softmax of scale * x + mask, one block per row, with two reads: maximum and sum by the online
// update, then the result.
//
// Parameters in rows.cuh; any strides, rows of any length. Pieces of VEC elements as in 02_registers.cu; each thread
// has several in flight.
//
// Bottleneck: two reads of each element. With one block of 1,024 threads per SM, few rows are in progress, so the
// second read finds much of them in L2. The next variant reads once.
#include "../common/online.cuh"
#include "rows.cuh"

// x, y: (rows, cols); grid: rows, block: a multiple of 32
template <class T, class M, int MASK, bool LOG, int VEC>
__global__ void __launch_bounds__(1024, 1) two_reads(const T* x, const M* mask, T* y, int64 x_row, int64 x_col,
    int64 m_row, int64 m_col, int64 y_row, int64 y_col, int64 rows, int64 cols, float scale) {
    constexpr int kBatch = VEC == 8 ? 2 : 4;  // pieces in flight per thread: 16 elements or fewer
    __shared__ float maxima[kWarp], sums[kWarp];
    const int64 row = blockIdx.x;
    const int64 step = static_cast<int64>(blockDim.x) * VEC;    // columns that the block takes at once
    const int64 start = static_cast<int64>(threadIdx.x) * VEC;  // this thread's first column
    x += row * x_row;
    y += row * y_row;
    if constexpr (MASK != kNoMask) mask += row * m_row;
    bool seen = false;
    // Loads the scores of kBatch pieces from column c on, `step` columns apart; columns past the row become -inf.
    const auto load = [&](int64 c, float (&values)[kBatch][VEC]) {
        Pack<T, VEC> pieces[kBatch];
        Pack<M, VEC> masks[MASK == kNoMask ? 1 : kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int64 column = c + i * step;
            if (column >= cols) continue;
            pieces[i] = *reinterpret_cast<const Pack<T, VEC>*>(x + column * x_col);
            if constexpr (MASK != kNoMask) masks[i] = *reinterpret_cast<const Pack<M, VEC>*>(mask + column * m_col);
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
#pragma unroll
            for (int k = 0; k < VEC; ++k) {
                values[i][k] = -kInfinity;
                if (c + i * step >= cols) continue;
                if constexpr (MASK == kNoMask)
                    values[i][k] = score<MASK>(pieces[i].at[k], 0, scale, seen);
                else
                    values[i][k] = score<MASK>(pieces[i].at[k], masks[i].at[k], scale, seen);
            }
    };

    Online share = online_empty();
    for (int64 c = start; c < cols; c += kBatch * step) {
        float values[kBatch][VEC], maximum = share.maximum;
        load(c, values);
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
#pragma unroll
            for (int k = 0; k < VEC; ++k) maximum = fmaxf(maximum, values[i][k]);
        const float shift = online_shift(maximum);
        share = {maximum, share.sum * exponential(share.maximum - shift)};
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
#pragma unroll
            for (int k = 0; k < VEC; ++k) share.sum += exponential(values[i][k] - shift);
    }
    const float maximum = warps_reduce_block(share.maximum, maxima, Max());
    const float part = share.sum * exponential(share.maximum - online_shift(maximum));
    const float sum = warps_reduce_block(part, sums, Sum());
    // A row that the mask hides completely becomes 0 (log-softmax: -inf), whatever x is.
    const bool any = __syncthreads_or(seen);
    const float last = LOG ? logf(sum) : 1.0f / sum;
    for (int64 c = start; c < cols; c += kBatch * step) {
        float values[kBatch][VEC];
        load(c, values);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int64 column = c + i * step;
            if (column >= cols) continue;
            Pack<T, VEC> piece;
#pragma unroll
            for (int k = 0; k < VEC; ++k) {
                const float shifted = values[i][k] - maximum;
                const float result = LOG ? shifted - last : exponential(shifted) * last;
                piece.at[k] = static_cast<T>(any ? result : LOG ? -kInfinity : 0.0f);
            }
            *reinterpret_cast<Pack<T, VEC>*>(y + column * y_col) = piece;
        }
    }
}
