// Softmax of rows whose columns are split over several devices.
//
// local_sums reads this device's columns and writes a pair per row: their maximum, and the sum of exp(x - maximum); the
// sum is -1 if the mask hides them all. After the pairs of all devices were gathered, scale merges them per row and
// writes this device's columns.
//
// x, y: (rows, cols), with strides in elements; y may be x. mask: bool, with stride 0 along broadcast axes; false hides
// an element, whose result is 0 unless the row is NaN. pairs: (devices, rows). T is float, __half or __nv_bfloat16;
// arithmetic is in float. A row with a visible NaN or +inf, or whose visible elements are all -inf, becomes NaN on all
// devices; a completely hidden row becomes 0.
//
// Bottleneck: memory bandwidth; x is read twice.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../common/online.cuh"
#include "../common/reduce.cuh"

// Without a mask the mask pointer is never read: the caller passes x, and M is T.
template <bool MASKED, class M>
__device__ __forceinline__ bool is_seen(const M* mask, int64 place) {
    if constexpr (MASKED)
        return mask[place];
    else
        return true;
}

__device__ __forceinline__ Online block_merge(Online share, float* maxima, float* sums) {
    const float maximum = warps_reduce_block(share.maximum, maxima, Max());
    const float shift = online_shift(maximum);
    return {maximum, warps_reduce_block(share.sum * expf(share.maximum - shift), sums, Sum())};
}

// grid: rows, block: a multiple of 32
template <class T, class M, bool MASKED>
__global__ void __launch_bounds__(1024) local_sums(
    const T* x, const M* mask, Online* pairs, int64 x_row, int64 x_col, int64 mask_row, int64 mask_col, int64 cols) {
    __shared__ float maxima[kWarp], sums[kWarp];
    const int64 row = blockIdx.x;
    Online share = online_empty();
    bool any = false;
    for (int64 c = threadIdx.x; c < cols; c += blockDim.x)
        if (is_seen<MASKED>(mask, row * mask_row + c * mask_col)) {
            share = online_add(share, static_cast<float>(x[row * x_row + c * x_col]));
            any = true;
        }
    const Online total = block_merge(share, maxima, sums);
    any = __syncthreads_or(any);
    if (threadIdx.x == 0) pairs[row] = {total.maximum, any ? total.sum : -1.0f};
}

// grid: rows, block: a multiple of 32
template <class T, class M, bool MASKED>
__global__ void __launch_bounds__(1024) scale(const T* x, const M* mask, T* y, const Online* pairs, int64 x_row,
    int64 x_col, int64 mask_row, int64 mask_col, int64 y_row, int64 y_col, int64 rows, int64 cols, int devices) {
    const int64 row = blockIdx.x;
    Online total = online_empty();
    bool any = false;
    for (int i = 0; i < devices; ++i) {
        const Online pair = pairs[i * rows + row];
        if (pair.sum < 0.0f) continue;
        total = online_merge(total, pair);
        any = true;
    }
    const float factor = 1.0f / total.sum;
    for (int64 c = threadIdx.x; c < cols; c += blockDim.x) {
        const bool seen = is_seen<MASKED>(mask, row * mask_row + c * mask_col);
        const float value = seen ? static_cast<float>(x[row * x_row + c * x_col]) : -kInfinity;
        y[row * y_row + c * y_col] = static_cast<T>(any ? expf(value - total.maximum) * factor : 0.0f);
    }
}
