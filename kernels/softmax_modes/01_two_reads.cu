// Row softmax or log-softmax of scale * x + mask, one block a row: the pair of maximum and sum online, then a second
// read.
//
// Parameters in rows.cuh; any strides, rows of any length.
//
// Bound by: two reads of each element, and accesses of 2 or 4 bytes. The next rung reads once, 16 bytes at a time.
#include "../common/online.cuh"
#include "rows.cuh"

// x, y: (rows, cols); grid: rows, block: a multiple of 32
template <class T, class M, int MASK, bool LOG>
__global__ void __launch_bounds__(512) two_reads(const T* x, const M* mask, T* y, int64 x_row, int64 x_col, int64 m_row,
    int64 m_col, int64 y_row, int64 y_col, int64 rows, int64 cols, float scale) {
    __shared__ float maxima[kWarp], sums[kWarp];
    const int64 row = blockIdx.x;
    x += row * x_row;
    y += row * y_row;
    if constexpr (MASK != kNoMask) mask += row * m_row;
    bool seen = false;
    const auto value = [&](int64 c) {
        if constexpr (MASK == kNoMask)
            return score<MASK>(x[c * x_col], 0, scale, seen);
        else
            return score<MASK>(x[c * x_col], mask[c * m_col], scale, seen);
    };

    Online share = online_empty();
    for (int64 c = threadIdx.x; c < cols; c += blockDim.x) share = online_add(share, value(c));
    const float maximum = warps_reduce_block(share.maximum, maxima, Max());
    const float part = share.sum * expf(share.maximum - online_shift(maximum));
    const float sum = warps_reduce_block(part, sums, Sum());
    // A row that the mask hides altogether is 0, its logarithm -inf: x has no say in it.
    const bool any = __syncthreads_or(seen);
    const float log_sum = LOG ? logf(sum) : 0.0f;
    for (int64 c = threadIdx.x; c < cols; c += blockDim.x) {
        const float shifted = value(c) - maximum;
        const float result = LOG ? shifted - log_sum : expf(shifted) / sum;
        y[c * y_col] = static_cast<T>(any ? result : LOG ? -kInfinity : 0.0f);
    }
}
