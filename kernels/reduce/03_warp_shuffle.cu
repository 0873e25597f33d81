// Sum, max or argmax along one axis: one block per result, combined by warp shuffles and one barrier.
//
// Parameters as in 01_thread_per_row.cu.
//
// Bottleneck: the number of loads, 4 bytes per lane each. The next variant loads 16 bytes at once.
#include "operators.cuh"

// grid: kept, block: BLOCK
template <class Op, class Result, int BLOCK>
__global__ void __launch_bounds__(BLOCK) warp_shuffle(const float* x, Result* y, int64 kept_stride, int64 along_stride,
    int64 kept_index, int64 along_index, int64 y_stride, int64 kept, int64 length) {
    static_assert(BLOCK % kWarp == 0, "whole warps shuffle");
    __shared__ typename Op::State shared[kWarp];
    const Walk walk{kept_stride, along_stride, kept_index, along_index};
    const int64 k = blockIdx.x;
    const auto mine = fold_scalars<Op>(x + k * kept_stride, walk, k * kept_index, threadIdx.x, length, BLOCK);
    const auto all = block_merge<Op>(mine, shared);
    if (threadIdx.x == 0) y[k * y_stride] = Op::result(all);
}
