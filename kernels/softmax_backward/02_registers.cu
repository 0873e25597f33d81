// Gradient of row softmax or log-softmax that reads each element once, 16 bytes at a time. The row of both arrays is
// held in registers, 16-bit elements as loaded.
//
// Parameters in rows.cuh. LANES threads share a row: part of a warp or the whole block. Each holds HELD pieces of VEC
// elements of grad and of y; LANES * HELD * VEC is at least cols. VEC > 1 needs contiguous columns, 16-byte aligned
// rows and cols a multiple of VEC; VEC = 1 takes any strides.
//
// Bottleneck: memory bandwidth: one read of each element of both arrays, and one write.
#include "rows.cuh"

// grad, y, out: (rows, cols); grid: ceil(rows / (BLOCK / LANES)), block: BLOCK
template <class T, bool LOG, int BLOCK, int LANES, int HELD, int VEC>
__global__ void __launch_bounds__(BLOCK) registers(const T* grad, const T* y, T* out, int64 grad_row, int64 grad_col,
    int64 y_row, int64 y_col, int64 out_row, int64 out_col, int64 rows, int64 cols, float scale) {
    static_assert(BLOCK % kWarp == 0 && BLOCK % LANES == 0, "whole warps, whole groups");
    static_assert(LANES <= kWarp || LANES == BLOCK, "a group past a warp is the block: its barrier is the block's");
    __shared__ float sums[kWarp];
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
    grad += row * grad_row;
    y += row * y_row;
    out += row * out_row;

    // All loads before the first use, so that they are in flight together.
    Pack<T, VEC> grads[HELD] = {}, values[HELD] = {};  // 0 past the row: adds nothing to the sum
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        if (!inside || column(i) >= cols) continue;
        grads[i] = *reinterpret_cast<const Pack<T, VEC>*>(grad + place<VEC>(column(i), grad_col));
        values[i] = *reinterpret_cast<const Pack<T, VEC>*>(y + place<VEC>(column(i), y_col));
    }

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        add_terms<LOG>(sum, grads[i], values[i]);
        forget_conversions(grads[i]);
        forget_conversions(values[i]);
    }
    if constexpr (LANES > kWarp)
        sum = warps_reduce_block(sum, sums, Sum());
    else
        sum = lanes_reduce<LANES>(sum, Sum());

#pragma unroll
    for (int i = 0; i < HELD; ++i)
        if (inside && column(i) < cols)
            store(out + place<VEC>(column(i), out_col), gradient<LOG>(grads[i], values[i], sum, scale));
}
