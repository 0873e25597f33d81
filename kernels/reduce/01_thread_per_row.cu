// Sum, maximum or its place along one axis of a matrix: one thread a reduction.
//
// x: element i of reduction k at x[k * kept_stride + i * along_stride], of any sign; y: one result every y_stride.
// Over rows, neighbouring threads read a row apart: 32 sectors a request, an eighth of each used. Over columns the same
// kernel reads neighbours, and lacks only threads. The next rung gives a row to a block.
#include "operators.cuh"

// grid: 1-D, a thread each of `kept` reductions of `length` elements
template <class Op, class Result>
__global__ void thread_per_row(const float* x, Result* y, int64 kept_stride, int64 along_stride, int64 kept_index,
    int64 along_index, int64 y_stride, int64 kept, int64 length) {
    const int64 k = global_thread();
    if (k >= kept) return;
    const Walk walk{kept_stride, along_stride, kept_index, along_index};
    y[k * y_stride] = Op::result(fold_scalars<Op>(x + k * kept_stride, walk, k * kept_index, 0, length, 1));
}
