// Gradient of row softmax or log-softmax, one block per row, with two reads: the row's sum, then the result.
//
// Parameters in rows.cuh; any strides, rows of any length. VEC > 1 needs contiguous columns, 16-byte aligned rows and
// cols a multiple of VEC, and moves 16 bytes at a time.
//
// Bottleneck: two reads of both arrays (log-softmax: only grad is read twice). With one block of 1,024
// threads per SM, few rows are in progress, so the second read finds much of them in L2. The next variant
// reads once.
#include "rows.cuh"

// Calls use(column, piece of grad, piece of y) for every piece of this thread; y is not read if READ_Y is false.
template <bool READ_Y, int VEC, class T, class Use>
__device__ __forceinline__ void for_each_piece(
    const T* grad, int64 grad_col, const T* y, int64 y_col, int64 cols, Use use) {
    constexpr int kBatch = VEC == 1 ? 4 : 2;                  // pieces of each array that are loaded before one is used
    const int64 step = static_cast<int64>(blockDim.x) * VEC;  // columns that the block takes at once
    const int64 start = static_cast<int64>(threadIdx.x) * VEC;  // this thread's first column
    for (int64 c = start; c < cols; c += kBatch * step) {
        Pack<T, VEC> grads[kBatch], values[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int64 column = c + i * step;
            if (column >= cols) continue;
            grads[i] = *reinterpret_cast<const Pack<T, VEC>*>(grad + place<VEC>(column, grad_col));
            if (READ_Y) values[i] = *reinterpret_cast<const Pack<T, VEC>*>(y + place<VEC>(column, y_col));
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
            if (c + i * step < cols) use(c + i * step, grads[i], values[i]);
    }
}

// grad, y, out: (rows, cols); grid: rows, block: a multiple of 32
template <class T, bool LOG, int VEC>
__global__ void __launch_bounds__(1024, 1) two_reads(const T* grad, const T* y, T* out, int64 grad_row, int64 grad_col,
    int64 y_row, int64 y_col, int64 out_row, int64 out_col, int64 rows, int64 cols, float scale) {
    __shared__ float sums[kWarp];
    const int64 row = blockIdx.x;
    grad += row * grad_row;
    y += row * y_row;
    out += row * out_row;

    float sum = 0.0f;
    for_each_piece<!LOG, VEC>(grad, grad_col, y, y_col, cols,
        [&](int64, const Pack<T, VEC>& g, const Pack<T, VEC>& value) { add_terms<LOG>(sum, g, value); });
    sum = warps_reduce_block(sum, sums, Sum());
    for_each_piece<true, VEC>(
        grad, grad_col, y, y_col, cols, [&](int64 column, const Pack<T, VEC>& g, const Pack<T, VEC>& value) {
            store(out + place<VEC>(column, out_col), gradient<LOG>(g, value, sum, scale));
        });
}
